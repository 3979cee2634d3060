#pragma once

// The timeline of a rank's step: the record of its compute, which a trace of collectives lacks, and a text
// that lists in the order of time what happened to each unit.

#include <memory>
#include <string>
#include <vector>

#include "comm/api/trace.h"
#include "model/nn/stage.h"
#include "shard/units/unit_sizes.h"

namespace fsdp::shard {
class Engine;
}

namespace fsdp::train {

/// Records in `trace` when the stages of the engine's units compute, without gathering and freeing: a compute
/// event (comm/events/trace_event.h) for each forward, recomputation and backward. The backward of a stage
/// whose input has no gradient has no end. Requires: activation checkpointing was applied before, because the
/// new hooks must be inside those that are attached already.
void record_compute(nn::Stage& model, const shard::Engine& engine, std::shared_ptr<comm::Trace> trace);

/// Times are those of the trace.
struct StepRecord {
  double begin_us = 0, end_us = 0;
  std::vector<comm::TraceEvent> events{};
};

/// A line of the timeline.
struct TimelineLine {
  double at_us = 0;        ///< time since the trace began
  std::string unit{};      ///< the unit, or the purpose of a collective that belongs to no unit
  std::string what{};      ///< "gather issued", "gathered", "forward", "freed", ...
  std::string detail{};    ///< payload, or the duration and the rank's wait in it
  int64_t live_bytes = 0;  ///< unsharded parameters and gradients after the event
};

/// Returns the whole step in the order of time.
std::vector<TimelineLine> timeline_of(const StepRecord& step);

/// Limits of the lines that are written out.
struct TimelineLimits {
  std::vector<std::string> units;  ///< units of the model, the root's first
  size_t root_units = 1;           ///< number of units that belong to the root
  size_t most_lines = 60;          ///< 0: no limit
};

/// Returns a heading, the lines with their times in ms since the step began, and what was left out. If the
/// step exceeds the limit, only the last of several micro-batches is shown, with the root and as many of the
/// first and last units as the limit allows.
std::string timeline_text(const StepRecord& step, const TimelineLimits& limits);

/// Returns the traffic of one collective.
shard::Traffic traffic_of(const comm::TraceEvent& collective);

/// Communication of a step on this rank.
struct CommunicationTime {
  double total_us = 0;  ///< time of collectives, from their turn to their result, with waits for other ranks
  double exposed_us = 0;  ///< time in which the rank waited for a collective without computing
};
CommunicationTime communication_time(const StepRecord& step);

/// Returns "1.23 ms" for 1234.5.
std::string milliseconds(double us);

}  // namespace fsdp::train
