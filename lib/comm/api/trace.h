#pragma once

// Records what a rank communicates and which unsharded buffers exist, as events (comm/events/trace_event.h) in
// memory or in a file.

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

  /// The events that follow belong to this step; complete ones of the steps before it are in the file on
  /// return.
  void begin_step(int64_t step);

  /// A collective was issued; its number goes to the calls below, and then to either waits() or left_alone().
  uint64_t issued(const char* op, const CallSite& site, int64_t bytes);
  void started(uint64_t number);
  void finished(uint64_t number);
  /// The rank begins to wait for it.
  void waits(uint64_t number);
  /// Nobody will wait for it.
  void left_alone(uint64_t number);

  /// A stage begins to compute; see trace_event.h for `pass`. finished() takes the number that is returned,
  /// unless the event `has_no_end`.
  uint64_t computes(const std::string& unit, const char* pass, bool has_no_end = false);

  /// Memory of a unit's unsharded parameters or gradients was allocated or freed.
  void buffer(bool allocated, const std::string& unit, const char* kind, int64_t bytes);

  /// The events of a step that are still in memory, in order of issue: all of them where open() is never
  /// called.
  std::vector<TraceEvent> events(int64_t step) const;

  double now_us() const;

 private:
  using Clock = std::chrono::steady_clock;
  void take_time(uint64_t number, std::optional<double> TraceEvent::*time);
  // These expect the lock to be held.
  TraceEvent& pending(uint64_t number);
  void write_complete();

  const Clock::time_point began_;
  mutable std::mutex mutex_;  ///< of all that follows
  int64_t step_ = 0;
  std::deque<TraceEvent> pending_;
  uint64_t first_pending_ = 0;  ///< number of pending_.front()
  std::filesystem::path path_;
  std::ofstream file_;
};

/// Passes everything on to `inner` and records its collectives and those of its subgroups in `trace`: tasks
/// enqueued before and after each collective take the times at which it begins and ends.
std::shared_ptr<Communicator> make_tracing_communicator(std::shared_ptr<Communicator> inner,
                                                        std::shared_ptr<Trace> trace);

}  // namespace fsdp::comm
