#pragma once

// DeviceGraph: what was launched on a device, recorded once and then launched again as one, without the
// host's work for each kernel. On NVIDIA GPUs these are CUDA graphs (CUDA C++ Programming Guide, "CUDA
// Graphs").
//
// A graph holds addresses, not tensors: it reads and writes the memory that its kernels were given when it
// was recorded, whatever lies there now. What the host did meanwhile is not repeated.

#include <functional>
#include <memory>

namespace fsdp::util {

class DeviceGraph {
 public:
  virtual ~DeviceGraph() = default;
  /// Launches on the calling thread's current stream.
  virtual void launch() = 0;
};

/// Makes graphs that use the same memory for what they allocate and free while they are recorded, so they
/// must be launched in the order in which they were recorded; any may be left out. What is still held when a
/// recording ends stays the holder's, and no later graph of the pool writes there.
class DeviceGraphPool {
 public:
  virtual ~DeviceGraphPool() = default;

  /// Records what `work` launches from this thread, and launches it once. `work` must not make the host wait
  /// for the device. Throws what `work` throws, and what the device has against the recording.
  virtual std::unique_ptr<DeviceGraph> record(const std::function<void()>& work) = 0;
};

using MakeGraphPool = std::function<std::shared_ptr<DeviceGraphPool>()>;

/// Pools of CUDA graphs on GPU `index`. Throws Error(kUsage) where there is no such GPU, as does a pool when
/// it is to record on the device's default stream, of which CUDA records nothing; see use_own_cuda_stream().
MakeGraphPool cuda_graph_pools(int index);

/// From now on what the calling thread launches on GPU `index` goes to a stream of its own.
void use_own_cuda_stream(int index);

}  // namespace fsdp::util
