#pragma once

// Named tensors on a disk, whatever the format, read by ranges of the flattened tensor.

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace fsdp::checkpoint {

struct TensorInfo {
  std::string name;
  std::vector<int64_t> shape;
  c10::ScalarType dtype = c10::ScalarType::Float;
};

/// Of its elements; -1 times their size when checked_numel() finds the shape impossible.
int64_t bytes_of(const TensorInfo& info);

/// One file, or one checkpoint of several. Not thread-safe; memory is bounded by the description.
class TensorSource {
 public:
  virtual ~TensorSource() = default;

  virtual const std::filesystem::path& path() const = 0;

  /// What is in it, by name.
  virtual std::vector<TensorInfo> infos() const = 0;

  /// Elements [begin, end) of the flattened tensor, bitwise as they are stored.
  virtual void read(const std::string& name, int64_t begin, int64_t end, void* out) const = 0;
};

}  // namespace fsdp::checkpoint
