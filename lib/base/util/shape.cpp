#include "base/util/shape.h"

namespace fsdp::util {

int64_t checked_numel(const std::vector<int64_t>& shape, int64_t itemsize_bytes) {
  int64_t numel = 1, bytes = itemsize_bytes;
  bool empty = false;
  for (int64_t size : shape) {
    if (size < 0) return -1;
    if (size == 0) {
      empty = true;
      continue;
    }
    if (__builtin_mul_overflow(numel, size, &numel) || __builtin_mul_overflow(bytes, size, &bytes) ||
        bytes > (int64_t{1} << 62)) {
      return -1;
    }
  }
  return empty ? 0 : numel;
}

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += (i ? ", " : "") + std::to_string(shape[i]);
  return text + "]";
}

}  // namespace fsdp::util
