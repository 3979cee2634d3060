#pragma once

// fsdp-train --explain-step: what one optimizer step does, event by event, and against the formula.

#include <memory>
#include <string>

#include "comm/communicator.h"
#include "config/config.h"

namespace fsdp::train {

struct ExplainOptions {
  bool all_units = false;  ///< every event; off: as many units as some sixty lines have room for
};

/// Trains two optimizer steps from the first weights (no checkpoint is read) and explains the second, because
/// prefetching knows the order of units only from then on:
///
///   - who runs what: model, ranks, strategy, units
///   - what the schedule does at each event of a unit, see shard/schedule_text.h
///   - a timeline of rank 0, see step_timeline.h
///   - a table of shard::step_formula() against what was counted
///
/// Writes no file. Returns the text on rank 0 and nothing on the others. Collective; throws as Trainer does.
std::string explain_step(const config::Config& config, std::shared_ptr<comm::Communicator> communicator,
                         const ExplainOptions& options = {});

}  // namespace fsdp::train
