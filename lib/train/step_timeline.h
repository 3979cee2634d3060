#pragma once

// A rank's step as text: what happened to which unit, in the order of time.

#include <string>
#include <vector>

#include "comm/trace.h"
#include "train/compute_recorder.h"

namespace fsdp::train {

/// What the timeline is made of. Times are those of the trace.
struct StepRecord {
  double begin_us = 0, end_us = 0;
  std::vector<comm::Trace::Event> events{};
  std::vector<ComputeSpan> spans{};
};

/// An event of a step; what a line of the timeline says.
struct TimelineEvent {
  double at_us = 0;        ///< since the trace began
  std::string unit;        ///< or what a collective that is not of a unit is about
  std::string what;        ///< "gather issued", "gathered", "forward", "freed", ...
  std::string detail{};    ///< how long it took, and how much of that the rank waited
  int64_t live_bytes = 0;  ///< gathered parameters and gradients after it
};

/// All events of a step in the order of time.
std::vector<TimelineEvent> timeline_of(const StepRecord& step);

/// Which events are written out.
struct TimelineLimits {
  std::vector<std::string> units;  ///< of the model, those of the root first
  size_t root_units = 1;           ///< how many of them
  size_t most_lines = 60;          ///< 0: no limit
};

/// A heading, one line an event with the time in ms since the step began, and what was left out: with a limit
/// that the step exceeds, as many units as it allows from the beginning and the end of the model are shown,
/// the root always, and of several micro-batches the last.
std::string timeline_text(const StepRecord& step, const TimelineLimits& limits);

/// Communication of a step on this rank.
struct CommunicationTime {
  double total_us = 0;  ///< in collectives, from their turn to their result; waiting for other ranks is in it
  double exposed_us = 0;  ///< the rank waited for a collective without computing
};
CommunicationTime communication_time(const StepRecord& step);

/// 1234.5 -> "1.23 ms".
std::string milliseconds(double us);

}  // namespace fsdp::train
