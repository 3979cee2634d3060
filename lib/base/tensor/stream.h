#pragma once

// Stream: an ordered queue of tasks that run concurrently with the caller; Event: the end of a task.
// Communication has a separate stream, so that it overlaps with computation.
//
// On the CPU a stream is a thread with a FIFO. On other devices it is a stream of the device (c10::Stream):
// the calling thread runs tasks at once with that stream current, and their kernels run concurrently with the
// caller's stream. Either way a task sees everything that its caller did before run().
//
// On a device the host runs ahead. Memory that a task uses may be freed only after the stream that will reuse
// it has waited for the task, because streams are not recorded with the allocator.

#include <c10/core/Device.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>

namespace fsdp::util {

/// The end of one task of a stream. Copies refer to the same task; a default-constructed Event is reached.
class Event {
 public:
  /// CPU: blocks until the task is done, and rethrows its exception. Devices: makes the caller's current
  /// stream wait, and returns at once. May be called repeatedly. Thread-safe.
  void wait() const;

  /// Like wait(), but blocks the calling thread on devices too.
  void synchronize() const;

  /// Whether the task is done.
  bool reached() const;

  class Completion;
  Event() = default;
  explicit Event(std::shared_ptr<Completion> state) : state_(std::move(state)) {}

 private:
  std::shared_ptr<Completion> state_;
};

/// Options of a Stream.
struct StreamOptions {
  std::string name = "fsdp stream";  ///< name of the thread, cut to 15 characters
  c10::Device device = c10::kCPU;
  /// Whether the thread is to begin its tasks at once while others compute (base/util/time_slices.h).
  bool short_time_slices = false;
  /// How long the destructor waits for the running task (CPU).
  std::chrono::milliseconds patience{2000};
};

/// A queue of tasks that run one after another in the order of run(). After a task has thrown, the stream is
/// broken: later tasks do not run, and their events throw the same exception.
class Stream {
 public:
  Stream() : Stream(StreamOptions{}) {}
  explicit Stream(const StreamOptions& options);

  /// CPU: drops the tasks that have not started (their events throw), and waits for the running one. If that
  /// takes longer than StreamOptions::patience, the thread is detached and ends with its task.
  ~Stream();

  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  /// Appends `task`, which is destroyed before its event is reached. It runs without autograd. On the CPU it
  /// runs on the stream's thread, where loops of this project (but not libtorch's kernels) use one thread, so
  /// that they take no cores from computation. Thread-safe on the CPU only.
  Event run(std::function<void()> task);

  /// Like run(), but on a device the task waits only for the events on which it calls wait().
  Event run_apart(std::function<void()> task);

  class TaskQueue;

 private:
  std::unique_ptr<TaskQueue> queue_;
};

}  // namespace fsdp::util
