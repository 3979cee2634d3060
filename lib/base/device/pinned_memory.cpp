#include "base/device/pinned_memory.h"

#include <ATen/ops/empty.h>

#include <memory>

#include "base/device/cuda.h"

namespace fsdp::util {
namespace {

struct Owner {
  int device;
  void* memory;

  static void release(void* owner) {
    const std::unique_ptr<Owner> owned(static_cast<Owner*>(owner));
    free_pinned(owned->device, owned->memory);
  }
};

}  // namespace

at::Tensor empty_pinned(int64_t numel, at::ScalarType type, at::Device device) {
  const at::TensorOptions options = at::TensorOptions().dtype(type);
  if (!device.is_cuda() || numel == 0) return at::empty({numel}, options.pinned_memory(true));
  const auto bytes = static_cast<size_t>(numel) * c10::elementSize(type);
  void* const memory = allocate_pinned(device.index(), bytes);
  auto owner = std::make_unique<Owner>(Owner{device.index(), memory});
  c10::Storage storage(c10::Storage::use_byte_size_t(), bytes,
                       c10::DataPtr(memory, owner.release(), &Owner::release, at::kCPU));
  return at::empty({0}, options).set_(storage, 0, {numel}, {1});
}

}  // namespace fsdp::util
