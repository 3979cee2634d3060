#pragma once

// Stream: an ordered queue of work that runs beside its caller, and Event, the point in it at which a task is
// done. Communication runs in a stream of its own, so that it overlaps with computation.
//
// On the CPU a stream is a thread with a FIFO. On other devices it is a stream of the device (c10::Stream):
// tasks run at once on the calling thread with that stream current, and what they launch runs beside the
// caller's stream. Either way a task sees what its caller had done before run().
//
// On a device the host is ahead of what it has launched. Memory that a task uses may be given back only when
// the stream to which it goes has waited for the task: nothing here records streams with the allocator.

#include <c10/core/Device.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>

namespace fsdp::util {

/// The end of one task of a stream. Copies speak of the same task; a default-made Event is reached.
class Event {
 public:
  /// CPU: blocks until the task is done, and throws what it threw. Devices: makes the caller's current stream
  /// wait for it and returns at once. It may be called often and from any thread.
  void wait() const;

  /// In place of wait(): on devices it is the calling thread that waits.
  void synchronize() const;

  /// Whether wait() would not have to wait.
  bool reached() const;

  class State;
  Event() = default;
  explicit Event(std::shared_ptr<State> state) : state_(std::move(state)) {}

 private:
  std::shared_ptr<State> state_;
};

/// The tasks of a stream run one after another in the order of run(). After a task has thrown, the stream is
/// broken: later tasks do not run, and their events throw the same error.
class Stream {
 public:
  struct Options {
    std::string name = "fsdp stream";  ///< of the thread; the system keeps 15 characters
    c10::Device device = c10::kCPU;
    /// How long destruction waits for the task that runs (CPU).
    std::chrono::milliseconds patience{2000};
  };

  Stream() : Stream(Options{}) {}
  explicit Stream(const Options& options);

  /// CPU: drops the tasks that have not begun (their events throw), and waits for the one that runs. A task
  /// that outlasts Options::patience is left behind: its thread ends with it, and owns what it uses.
  ~Stream();

  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  /// Puts `task` at the end. The task owns what it captures, and that is released before its event is
  /// reached. It runs without autograd; on the CPU on the stream's thread, where loops of this project do not
  /// fork, so that they take no cores from the computation; libtorch's kernels do. CPU streams may be given
  /// tasks by any thread, others by one at a time.
  Event run(std::function<void()> task);

  /// run() for a task that on a device does not wait for what its caller had launched, but for the events
  /// alone that it waits for itself.
  Event run_apart(std::function<void()> task);

  class Queue;

 private:
  std::unique_ptr<Queue> queue_;
};

}  // namespace fsdp::util
