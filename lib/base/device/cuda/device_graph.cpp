#include "base/device/device_graph.h"

#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAStream.h>

#include "base/device/cuda.h"
#include "base/util/error.h"

namespace fsdp::util {
namespace {

class CudaGraph final : public DeviceGraph {
 public:
  void record(const c10::MempoolId_t& pool, const std::function<void()>& work) {
    // Other threads may query events meanwhile, such as those that monitor collectives.
    graph_.capture_begin(pool, cudaStreamCaptureModeThreadLocal);
    try {
      work();
    } catch (...) {
      try {
        graph_.capture_end();
      } catch (...) {  // the recording has failed; the exception of `work` says why
        (void)cudaGetLastError();
      }
      throw;
    }
    graph_.capture_end();
  }
  void launch() override { graph_.replay(); }

 private:
  at::cuda::CUDAGraph graph_;
};

class CudaGraphPool final : public DeviceGraphPool {
 public:
  explicit CudaGraphPool(c10::DeviceIndex device) : device_(device) {}

  std::unique_ptr<DeviceGraph> record(const std::function<void()>& work) override {
    if (c10::cuda::getCurrentCUDAStream(device_) == c10::cuda::getDefaultCUDAStream(device_)) {
      fail(
          ErrorKind::kUsage,
          "recording a CUDA graph: expected a current stream other than the device's default; found the default; "
          "call util::use_own_cuda_stream() before anything is put on the device");
    }
    auto graph = std::make_unique<CudaGraph>();
    graph->record(id_, work);
    graph->launch();
    return graph;
  }

 private:
  c10::DeviceIndex device_;
  c10::MempoolId_t id_ = at::cuda::graph_pool_handle();
};

}  // namespace

MakeGraphPool cuda_graph_pools(int index) {
  set_cuda_device(index);
  return [index] { return std::make_shared<CudaGraphPool>(static_cast<c10::DeviceIndex>(index)); };
}

void use_own_cuda_stream(int index) {
  set_cuda_device(index);
  const auto device = static_cast<c10::DeviceIndex>(index);
  c10::cuda::setCurrentCUDAStream(c10::cuda::getStreamFromPool(/*isHighPriority=*/false, device));
}

}  // namespace fsdp::util
