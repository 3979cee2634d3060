#pragma once

// FakeDevice: an accelerator without hardware, so that what is meant for several streams can be tested on any
// machine. It is libtorch's out-of-tree device type PrivateUse1 with four devices, one a rank.
//
// Its memory is the host's, and operators run at once on the calling thread, by libtorch's CPU kernels. What
// a device would do beside its host is only written down: every operator with its stream and the memory that
// it reads and writes (support/stream_recorder.h). An order that the host's calls did not ask for by events
// or by waiting is a race, also where the numbers came out right.
//
// As on CUDA:
// - The current stream is the thread's; streams of the pool do not wait for the default stream.
// - Freed memory goes back to the stream on which it was allocated, at once: whoever allocates next on that
//   stream gets it. Use on other streams must be over by then or known (Tensor::record_stream). It is filled
//   with 0xff, which is NaN in every floating-point type; so is new memory.
// - item(), copies to the host and operators whose result has a size that depends on data make the host wait
//   for the current stream.
// - A copy between the device and pinned memory with non_blocking is only done when the host has waited:
//   until then pinned memory that is copied to holds NaN, and it is a race to change what is copied from.
//
// One binary must not have another guard for PrivateUse1, and from get() on libtorch takes this device for
// the accelerator of the process.

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include <functional>
#include <string>
#include <vector>

#include "base/device/device_graph.h"
#include "support/stream_recorder.h"

namespace fsdp::testing {

class FakeDevice {
 public:
  static constexpr int kCount = 4;

  enum class Access { kRead, kWrite };

  static FakeDevice& get();

  at::Device device(int index = 0) const;
  at::TensorOptions options(at::ScalarType dtype = at::kFloat, int index = 0) const;

  /// A stream that nobody else has.
  c10::Stream new_stream(int index = 0) const;
  c10::Stream current_stream(int index = 0) const;
  static StreamName name(const c10::Stream& stream);

  /// Starts the log and the search for races. What came before is in order with all that follows.
  void begin();
  std::vector<std::string> races();
  /// The races as lines, for a message.
  std::string report();
  std::vector<Entry> log();
  /// See StreamRecorder::observe().
  void observe(std::function<void(size_t entry)> observer);

  /// For those who touch memory of the device without an operator, such as a communicator of a test.
  void note_access(const c10::Stream& stream, const void* memory, size_t bytes, Access access,
                   const std::string& what);
  /// The same by the host itself, which must have waited for what it touches.
  void note_host_access(const void* memory, size_t bytes, Access access, const std::string& what);

  /// Whether Event::query() answers for a device that is behind its host: an event is then reached only when
  /// the host has waited for it or for a later one. Otherwise it is reached when asked for, and the host
  /// knows.
  void set_behind(bool behind);

  /// Whether waiting for an event by the host does nothing, as if the call had been forgotten.
  void set_host_forgets_events(bool forgets);

  /// Pools of graphs, which run what was recorded again on the addresses that it had. No memory is shared
  /// among the graphs of a pool.
  static util::MakeGraphPool graph_pools();

  /// Bytes of the device that tensors hold now.
  size_t live_bytes(int index = 0) const;

 private:
  FakeDevice();
};

}  // namespace fsdp::testing
