#pragma once

// DeviceGraph: work for a device that is recorded once and launched again as a whole, without the host's work
// for each kernel. On NVIDIA GPUs these are CUDA graphs (CUDA C++ Programming Guide, "CUDA Graphs").
//
// A graph holds addresses, not tensors: it reads and writes the memory that its kernels used when they were
// recorded, with its current contents. Work of the host during the recording is not repeated.

#include <functional>
#include <memory>

namespace fsdp::util {

class DeviceGraph {
 public:
  virtual ~DeviceGraph() = default;
  /// Launches on the calling thread's current stream.
  virtual void launch() = 0;
};

/// Graphs that share the memory that they allocate and free while they are recorded. They must be launched in
/// the order of recording; any may be skipped. Memory that is still held when a recording ends stays with its
/// holder: no later graph of the pool writes there.
class DeviceGraphPool {
 public:
  virtual ~DeviceGraphPool() = default;
  /// Records the kernels that `work` launches from this thread, and launches them once. `work` must not make
  /// the host wait for the device. Throws the exceptions of `work` and the device's errors in recording.
  virtual std::unique_ptr<DeviceGraph> record(const std::function<void()>& work) = 0;
};

using MakeGraphPool = std::function<std::shared_ptr<DeviceGraphPool>()>;

/// Returns pools of CUDA graphs on GPU `index`. Throws Error(kUsage) if there is no such GPU. record() throws
/// Error(kUsage) on the device's default stream, which CUDA cannot record; see use_own_cuda_stream().
MakeGraphPool cuda_graph_pools(int index);

/// Makes a stream other than the default the calling thread's current stream on GPU `index`.
void use_own_cuda_stream(int index);

}  // namespace fsdp::util
