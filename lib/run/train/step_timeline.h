#pragma once

// The timeline of a rank's step: recording its compute, which a trace of collectives lacks, and its text,
// what happened to which unit in the order of time.

#include <memory>
#include <string>
#include <vector>

#include "comm/api/trace.h"
#include "model/nn/stage.h"
#include "shard/engine/engine.h"

namespace fsdp::train {

/// Records in `trace` when the stages of the engine's units compute, gathering and freeing left out: a
/// compute event (comm/events/trace_event.h) for each forward, recomputation and backward. Call it after activation
/// checkpointing was applied: the hooks that it attaches lie inside those that are attached already. The
/// backward of a stage whose input has no gradient has no end.
void record_compute(nn::Stage& model, const shard::Engine& engine, std::shared_ptr<comm::Trace> trace);

/// Times are those of the trace.
struct StepRecord {
  double begin_us = 0, end_us = 0;
  std::vector<comm::TraceEvent> events{};
};

/// A line of the timeline.
struct TimelineLine {
  double at_us = 0;        ///< since the trace began
  std::string unit{};      ///< or the purpose of a collective that belongs to no unit
  std::string what{};      ///< "gather issued", "gathered", "forward", "freed", ...
  std::string detail{};    ///< payload, or how long it took and how much of that the rank waited
  int64_t live_bytes = 0;  ///< unsharded parameters and gradients after it
};

/// The whole step in the order of time.
std::vector<TimelineLine> timeline_of(const StepRecord& step);

/// Which lines are written out.
struct TimelineLimits {
  std::vector<std::string> units;  ///< of the model, the root's first
  size_t root_units = 1;           ///< how many of them belong to the root
  size_t most_lines = 60;          ///< 0: no limit
};

/// A heading, the lines with their times in ms since the step began, and what was left out: where the step
/// exceeds the limit, only the last of several micro-batches is shown, and of it the root and as many of the
/// first and last units as the limit allows.
std::string timeline_text(const StepRecord& step, const TimelineLimits& limits);

/// Of one collective.
shard::Traffic traffic_of(const comm::TraceEvent& collective);

/// Communication of a step on this rank.
struct CommunicationTime {
  double total_us = 0;  ///< in collectives, from their turn to their result, including waits for other ranks
  double exposed_us = 0;  ///< the rank waited for a collective without computing
};
CommunicationTime communication_time(const StepRecord& step);

/// 1234.5 -> "1.23 ms".
std::string milliseconds(double us);

}  // namespace fsdp::train
