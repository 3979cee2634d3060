#pragma once

// The events of a step on a rank (trace_event.h) as what a picture of the step consists of: bars on tracks, and
// the live unsharded bytes. chrome_trace() and report::step_picture() draw it. Needs no libtorch.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "comm/events/trace_event.h"

namespace fsdp::comm {

/// A bar.
struct Slice {
  std::string op, unit, pass;
  int64_t bytes = 0;  ///< 0 of compute
  double begin_us = 0, end_us = 0;
  int lane = 0;  ///< of its track: bars that overlap have different ones. All of compute is in lane 0
};

struct StepTracks {
  /// Each sorted by time. Units lie inside the root. Compute without a recorded end lasts to the last event of
  /// its backward pass.
  std::vector<Slice> compute;
  std::vector<Slice> communication;  ///< without collectives that failed
  std::vector<Slice> waits;          ///< of this rank, for those collectives
  /// When the unsharded parameters of units were there; infinite where the step has no beginning or end of it.
  std::vector<Slice> held;

  /// The unsharded bytes by kind of buffer, from `at_us` on. What is freed in the step and was not allocated in
  /// it was there at its beginning.
  struct Live {
    double at_us = 0;
    std::map<std::string, int64_t> bytes;
  };
  std::vector<Live> live;
};

StepTracks tracks_of(const std::vector<TraceEvent>& events);

/// Tracks as a Chrome trace, for chrome://tracing and ui.perfetto.dev: an array of JSON objects. The process is
/// the rank, with a track for each lane and a counter for each kind of buffer. Times begin at `begin_us`.
std::string chrome_trace(const StepTracks& tracks, int rank, double begin_us);

}  // namespace fsdp::comm
