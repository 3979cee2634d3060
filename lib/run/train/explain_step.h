#pragma once

// fsdp-train --explain-step: explains one optimizer step event by event, and compares it with the formula.

#include <filesystem>
#include <memory>
#include <string>

#include "comm/api/communicator.h"
#include "setup/config/config.h"

namespace fsdp::train {

struct ExplainOptions {
  int ranks_of_host = 0;   ///< ranks on each host; 0: all ranks are on one host
  bool all_units = false;  ///< every event; otherwise as many units as fit into about 60 lines
  /// File into which rank 0 writes the step: a Chrome trace (comm/events/step_tracks.h) if its name ends in
  /// .json, a picture (tools/report/step_picture.h) if it ends in .svg. Empty: none is written.
  std::filesystem::path timeline{};
  /// Whether to return one JSON object (docs/schemas/fsdp-train-explain-step.json) instead of text. Schedule
  /// and timeline are left out.
  bool json = false;
};

/// Trains two optimizer steps from the first weights (no checkpoint is read) and explains the second, because
/// prefetching knows the order of units only from then on:
///
///   - model, ranks, strategy, units
///   - the schedule's commands at each event of a unit, see shard/units/schedule_text.h
///   - a timeline of rank 0, see step_timeline.h
///   - a table of shard::step_formula() and the measurements
///   - on several hosts, the bytes that each receives from the others
///
/// Writes no other file than options.timeline. Returns the text on rank 0 and an empty one on the others.
/// Collective. Throws as Trainer does, and, before the first step, Error(kUsage) for a timeline with another
/// ending and Error(kIo) for one that cannot be written.
std::string explain_step(const config::Config& config, std::shared_ptr<comm::Communicator> communicator,
                         const ExplainOptions& options = {});

}  // namespace fsdp::train
