#pragma once

// A record of what a rank communicates and which unsharded buffers exist, one JSON object a line:
//
//   {"step":1,"op":"all_gather","unit":"model.layers.0","pass":"forward","bytes":1581056,
//    "issue_us":120.4,"start_us":125.0,"wait_us":130.2,"done_us":812.9}
//   {"step":1,"op":"buffer","event":"allocate","unit":"model.layers.0","bytes":3162112,"kind":"parameters",
//    "at_us":119.8}
//
// Lines stand in the order in which collectives were issued. `bytes` is this rank's payload: the shard that
// it contributes to an all-gather or receives from a reduce-scatter, the whole tensor of an all-reduce or
// broadcast. Times are in microseconds since the trace began:
//
//   issue_us  the call
//   start_us  its turn came: the collectives issued before it in its group were done
//   wait_us   the rank began to wait for it; absent when nobody waited
//   done_us   its result was there, whether or not anybody waited by then; absent when it failed
//
// A collective held the rank up for max(0, done_us - wait_us): that much of it was not hidden behind
// computation. It took done_us - start_us, in which it may have waited for other ranks.

#include <chrono>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <fstream>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "comm/communicator.h"

namespace fsdp::comm {

/// Thread-safe: one thread issues collectives, in another they begin and end.
class Trace {
 public:
  /// A collective, or a buffer that came or went.
  struct Event {
    int64_t step;
    std::string op, unit;
    std::string pass_or_event;  ///< of a buffer: allocate, free
    int64_t bytes;
    double issue_us = 0;  ///< of a buffer: when it came or went
    std::optional<double> start_us{}, wait_us{}, done_us{};
    bool left_alone = false;
    const char* buffer_kind = nullptr;  ///< "parameters", "gradients", "communication"; null for a collective

    bool complete() const { return buffer_kind != nullptr || (done_us && (wait_us || left_alone)); }
  };

  /// Events are kept in memory until open() names their file.
  Trace() : began_(Clock::now()) {}
  ~Trace();
  Trace(const Trace&) = delete;
  Trace& operator=(const Trace&) = delete;

  /// Writes to the file from now on, after what it holds. Throws Error(kIo).
  void open(const std::filesystem::path& path);

  /// Following events belong to this step; those before it are in the file from now on.
  void begin_step(int64_t step);

  /// A collective was issued; its number goes to the calls below, and then to either waits() or left_alone().
  uint64_t issued(const char* op, const CallSite& site, int64_t bytes);
  void started(uint64_t number);
  void finished(uint64_t number);
  /// The rank begins to wait for it.
  void waits(uint64_t number);
  /// Nobody will wait for it.
  void left_alone(uint64_t number);

  /// Memory of a unit's unsharded parameters or gradients came or went.
  void buffer(bool allocated, const std::string& unit, const char* kind, int64_t bytes);

  /// The events of a step that no file has taken yet: all of them, where open() is never called. In order of
  /// issue.
  std::vector<Event> events(int64_t step) const;

  double now_us() const;

 private:
  using Clock = std::chrono::steady_clock;
  // These expect the lock to be held.
  Event& pending(uint64_t number);
  void write_complete();
  void write(const Event& event);

  const Clock::time_point began_;
  mutable std::mutex mutex_;  ///< of all that follows
  int64_t step_ = 0;
  std::deque<Event> pending_;
  uint64_t first_pending_ = 0;  ///< number of pending_.front()
  std::filesystem::path path_;
  std::ofstream file_;
};

/// Passes everything on to `inner` and writes collectives to `trace`, those of its subgroups too: tasks
/// enqueued before and after each one take the times at which it begins and ends.
std::shared_ptr<Communicator> make_tracing_communicator(std::shared_ptr<Communicator> inner,
                                                        std::shared_ptr<Trace> trace);

}  // namespace fsdp::comm
