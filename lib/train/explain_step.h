#pragma once

// fsdp-train --explain-step: what one optimizer step does, event by event, and against the formula.

#include <filesystem>
#include <memory>
#include <string>

#include "comm/communicator.h"
#include "config/config.h"

namespace fsdp::train {

struct ExplainOptions {
  bool all_units = false;  ///< every event; otherwise as many units as fit into about 60 lines
  /// Where rank 0 writes the step as a Chrome trace (comm/trace_event.h); empty: nowhere.
  std::filesystem::path timeline{};
};

/// Trains two optimizer steps from the first weights (no checkpoint is read) and explains the second, because
/// prefetching knows the order of units only from then on:
///
///   - model, ranks, strategy, units
///   - what the schedule does at each event of a unit, see shard/schedule_text.h
///   - a timeline of rank 0, see step_timeline.h
///   - a table of shard::step_formula() against what was measured
///
/// Writes no other file than options.timeline. Returns the text on rank 0 and an empty one on the others.
/// Collective; throws as Trainer does, and Error(kIo) before the first step if the timeline cannot be written.
std::string explain_step(const config::Config& config, std::shared_ptr<comm::Communicator> communicator,
                         const ExplainOptions& options = {});

}  // namespace fsdp::train
