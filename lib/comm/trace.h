#pragma once

// A record of what a rank communicates and which unsharded buffers exist, one JSON object a line:
//
//   {"step":1,"op":"all_gather","unit":"model.layers.0","pass":"forward","bytes":1581056,
//    "issue_us":120.4,"wait_us":130.2,"done_us":812.9}
//   {"step":1,"op":"buffer","event":"allocate","unit":"model.layers.0","bytes":3162112,"kind":"parameters"}
//
// Lines stand in the order in which collectives were issued. `bytes` is this rank's payload: the shard that
// it contributes to an all-gather or receives from a reduce-scatter, the whole tensor of an all-reduce or
// broadcast. Times are in microseconds since the trace began: the call, the start of the wait, the end of the
// wait.

#include <chrono>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include "comm/communicator.h"

namespace fsdp::comm {

class Trace {
 public:
  /// Events are kept in memory until open() names their file.
  Trace() : began_(Clock::now()) {}
  ~Trace();
  Trace(const Trace&) = delete;
  Trace& operator=(const Trace&) = delete;

  /// Writes to the file from now on, after what it holds. Throws Error(kIo).
  void open(const std::filesystem::path& path);

  /// Following events belong to this step; those before it are in the file from now on.
  void begin_step(int64_t step);

  /// A collective was issued; the returned number goes to finished().
  uint64_t issued(const char* op, const CallSite& site, int64_t bytes);
  void finished(uint64_t number, double wait_us);

  /// Memory of a unit's unsharded parameters or gradients came or went.
  void buffer(bool allocated, const std::string& unit, const char* kind, int64_t bytes);

  double now_us() const;

 private:
  using Clock = std::chrono::steady_clock;
  struct Event {
    int64_t step;
    std::string op, unit, pass_or_event;
    int64_t bytes;
    double issue_us = 0, wait_us = 0, done_us = 0;
    bool complete = false;
    const char* buffer_kind = nullptr;  ///< "parameters" or "gradients"; null for a collective
  };

  void write_complete();
  void write(const Event& event);

  Clock::time_point began_;
  int64_t step_ = 0;
  std::deque<Event> pending_;
  uint64_t first_pending_ = 0;  ///< number of pending_.front()
  std::filesystem::path path_;
  std::ofstream file_;
};

/// Passes everything on to `inner` and writes collectives to `trace`.
std::shared_ptr<Communicator> make_tracing_communicator(std::shared_ptr<Communicator> inner,
                                                        std::shared_ptr<Trace> trace);

}  // namespace fsdp::comm
