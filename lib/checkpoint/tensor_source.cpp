#include "checkpoint/tensor_source.h"

#include "checkpoint/manifest.h"

namespace fsdp::checkpoint {

int64_t bytes_of(const TensorInfo& info) {
  const auto itemsize_bytes = static_cast<int64_t>(c10::elementSize(info.dtype));
  return checked_numel(info.shape, itemsize_bytes) * itemsize_bytes;
}

}  // namespace fsdp::checkpoint
