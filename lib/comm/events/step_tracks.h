#pragma once

// StepTracks: the events of a step on a rank (trace_event.h) as the parts of a picture: bars on tracks, and
// the live unsharded bytes. chrome_trace() and report::step_picture() draw it.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "comm/events/trace_event.h"

namespace fsdp::comm {

/// A bar.
struct Slice {
  std::string op, unit, pass;
  int64_t bytes = 0;  ///< 0 for compute
  double begin_us = 0, end_us = 0;
  int lane = 0;  ///< lane in the track; bars that overlap have different lanes, compute is in lane 0
};

struct StepTracks {
  /// Tracks are sorted by time. Units are inside the root. Compute without a recorded end lasts to the last
  /// event of its backward pass.
  std::vector<Slice> compute;
  std::vector<Slice> communication;  ///< without collectives that failed
  std::vector<Slice> waits;          ///< time for which this rank waited for collectives
  /// Time for which a unit's unsharded parameters exist; infinite where its begin or end is not in the step.
  std::vector<Slice> held;

  /// Unsharded bytes by kind of buffer, from `at_us` on. Buffers that the step frees but does not allocate
  /// exist at its beginning.
  struct Live {
    double at_us = 0;
    std::map<std::string, int64_t> bytes;
  };
  std::vector<Live> live;
};

StepTracks tracks_of(const std::vector<TraceEvent>& events);

/// Tracks as a Chrome trace for chrome://tracing and ui.perfetto.dev: an array of JSON objects. The process
/// is the rank, with a track for each lane and a counter for each kind of buffer. Times begin at `begin_us`.
std::string chrome_trace(const StepTracks& tracks, int rank, double begin_us);

}  // namespace fsdp::comm
