#pragma once

// What happened in a step on a rank: collectives, unsharded buffers and, where they are recorded, the compute
// of units. In a file, one JSON object a line:
//
//   {"step":1,"op":"all_gather","unit":"model.layers.0","pass":"forward","bytes":1581056,
//    "issue_us":120.4,"start_us":125.0,"wait_us":130.2,"done_us":812.9}
//   {"step":1,"op":"buffer","event":"allocate","unit":"model.layers.0","bytes":3162112,"kind":"parameters",
//    "at_us":119.8}
//
// Lines stand in the order in which collectives were issued. `bytes` is this rank's payload: the shard that
// it contributes to an all-gather or receives from a reduce-scatter, the whole tensor of an all-reduce or
// broadcast, what it sends in a shift. Times are in microseconds since the trace began:
//
//   issue_us  the call
//   start_us  its turn came: the collectives issued before it in its group were done
//   wait_us   the rank began to wait for it; absent when nobody waited
//   done_us   its result was there, whether or not anybody waited by then; absent when it failed
//
// A collective held the rank up for max(0, done_us - wait_us): that much of it was not hidden behind
// computation. It took done_us - start_us, in which it may have waited for other ranks.
//
// A compute event has op "compute", the pass "forward", "recompute" (forward again, in backward) or
// "backward", no bytes, and the times issue_us = start_us and done_us. --explain-step records them
// (run/train/step_timeline.h), a training run does not. step_tracks.h arranges the events of a step as a
// picture.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace fsdp::comm {

struct TraceEvent {
  int64_t step = 0;
  std::string op{}, unit{};
  std::string pass_or_event{};  ///< pass; for a buffer "allocate" or "free"
  int64_t bytes = 0;
  double issue_us = 0;  ///< time of issue; of allocating or freeing a buffer
  std::optional<double> start_us{}, wait_us{}, done_us{};
  /// Nobody will wait for the collective; for compute: its end will not be recorded.
  bool left_alone = false;
  std::string buffer_kind{};  ///< "parameters", "gradients" or "communication"; empty unless a buffer

  bool is_buffer() const { return op == "buffer"; }
  bool is_compute() const { return op == "compute"; }
  bool is_collective() const { return !is_buffer() && !is_compute(); }
  /// Whether the event is complete: nothing of it can change any more.
  bool complete() const;

  double begin_us() const { return start_us.value_or(issue_us); }
  /// Change of the live bytes by a buffer's event: negative when it was freed.
  int64_t bytes_added() const;
  /// Time for which the rank waited for a collective's result; 0 if it did not wait.
  double waited_us() const;
};

/// The event as a line of a file, without the line end.
std::string trace_line(const TraceEvent& event);

/// The event of a trace_line(); nullopt for other text: torn, of another format, or with impossible times.
std::optional<TraceEvent> parse_trace_line(std::string_view line);

}  // namespace fsdp::comm
