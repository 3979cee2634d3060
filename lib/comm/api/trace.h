#pragma once

// Trace: records what a rank communicates and which unsharded buffers exist, as events
// (comm/events/trace_event.h) in memory or in a file.

#include <chrono>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <fstream>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "comm/api/communicator.h"
#include "comm/events/trace_event.h"

namespace fsdp::comm {

/// Thread-safe: one thread issues collectives, in another they begin and end.
class Trace {
 public:
  /// Events are kept in memory until open() names their file.
  Trace() : began_(Clock::now()) {}
  ~Trace();
  Trace(const Trace&) = delete;
  Trace& operator=(const Trace&) = delete;

  /// Appends to the file from now on. Throws Error(kIo).
  void open(const std::filesystem::path& path);

  /// Assigns the following events to this step. Complete events of earlier steps are in the file on return.
  void begin_step(int64_t step);

  /// Records that a collective was issued. Its number goes to the calls below, and then to waits() or
  /// left_alone().
  uint64_t issued(const char* op, const CallSite& site, int64_t bytes);
  void started(uint64_t number);
  void finished(uint64_t number);
  /// Records that the rank begins to wait for the collective.
  void waits(uint64_t number);
  /// Records that nobody will wait for the collective.
  void left_alone(uint64_t number);

  /// Records that a stage begins to compute; see trace_event.h for `pass`. The number returned goes to
  /// finished(), unless the event `has_no_end`.
  uint64_t computes(const std::string& unit, const char* pass, bool has_no_end = false);

  /// Records that memory of a unit's unsharded parameters or gradients was allocated or freed.
  void buffer(bool allocated, const std::string& unit, const char* kind, int64_t bytes);

  /// The events of a step that are still in memory, in order of issue: all of them if open() is never called.
  std::vector<TraceEvent> events(int64_t step) const;

  double now_us() const;

 private:
  using Clock = std::chrono::steady_clock;
  void take_time(uint64_t number, std::optional<double> TraceEvent::*time);
  // These expect the lock to be held.
  TraceEvent& pending(uint64_t number);
  void write_complete();

  const Clock::time_point began_;
  mutable std::mutex mutex_;  ///< guards the members below
  int64_t step_ = 0;
  std::deque<TraceEvent> pending_;
  uint64_t first_pending_ = 0;  ///< number of pending_.front()
  std::filesystem::path path_;
  std::ofstream file_;
};

/// Forwards to `inner` and records its collectives and those of its subgroups in `trace`. Tasks enqueued
/// before and after each collective record when it begins and ends.
std::shared_ptr<Communicator> make_tracing_communicator(std::shared_ptr<Communicator> inner,
                                                        std::shared_ptr<Trace> trace);

}  // namespace fsdp::comm
