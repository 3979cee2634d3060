// Implements base/device/cuda.h and base/device/device_graph.h for a build without CUDA.

#include "base/device/cuda.h"
#include "base/device/device_graph.h"
#include "base/util/error.h"

namespace fsdp::util {

bool built_with_cuda() { return false; }

const CudaStatus& cuda_status() {
  static const CudaStatus status{
      .devices = 0,
      .obstacle = "a program that was built without CUDA",
      .remedy = "build it with scripts/build --cuda, which needs the CUDA toolkit 13",
  };
  return status;
}

namespace {

[[noreturn]] void refuse(const std::string& who) {
  fail(ErrorKind::kUsage, who, ": expected a CUDA device; found ", cuda_status().obstacle, "; ",
       cuda_status().remedy);
}

[[noreturn]] void refuse(int index) { refuse(concat("CUDA device ", index)); }

}  // namespace

void require_cuda(const std::string& who) { refuse(who); }
void set_cuda_device(int index) { refuse(index); }
CudaDevice cuda_device(int index) { refuse(index); }
CudaMemory cuda_memory(int index) { refuse(index); }
int64_t cuda_bytes_in_use(int index) { refuse(index); }
void reset_cuda_peak_memory(int index) { refuse(index); }
void* allocate_pinned(int index, size_t) { refuse(index); }
void free_pinned(int, void*) noexcept {}
void record_cuda_memory_history(int index, const std::filesystem::path&) { refuse(index); }
void write_cuda_memory_snapshot(const std::filesystem::path&) { refuse("a snapshot of GPU memory"); }
MakeGraphPool cuda_graph_pools(int index) { refuse(index); }
void use_own_cuda_stream(int index) { refuse(index); }

}  // namespace fsdp::util
