#pragma once

// Weights from elsewhere, as Hugging Face lays them out: one safetensors file, or a folder with
// model.safetensors or with model.safetensors.index.json and the files that it names.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/safetensors.h"

namespace fsdp::checkpoint {

/// Named tensors on disk, read when asked. Not thread-safe.
class Weights {
 public:
  std::vector<std::string> names() const;
  bool contains(const std::string& name) const { return where_.contains(name); }
  const std::vector<int64_t>& shape(const std::string& name) const;
  at::ScalarType dtype(const std::string& name) const;

  /// Fills a contiguous CPU tensor of the same shape, converting between floating-point types. kCheckpoint
  /// when the name is missing, the shape differs, or one type is a floating-point one and the other is not.
  void read_into(const std::string& name, const at::Tensor& tensor) const;

  /// The same for elements [begin, begin + tensor.numel()) of the flattened tensor; `tensor` is 1-D.
  void read_range_into(const std::string& name, int64_t begin, const at::Tensor& tensor) const;

 private:
  friend Weights open_weights(const std::filesystem::path& path);
  void add(std::shared_ptr<const SafetensorsReader> file);
  const SafetensorsReader& file_of(const std::string& name) const;

  std::filesystem::path path_;
  std::map<std::string, std::shared_ptr<const SafetensorsReader>> where_;
};

/// kCheckpoint when the path holds no weights or damaged ones.
Weights open_weights(const std::filesystem::path& path);

}  // namespace fsdp::checkpoint
