#pragma once

// Weights, or a whole state, from wherever they lie: safetensors as Hugging Face lays them out (one file, or
// a folder with model.safetensors or with model.safetensors.index.json and the files that it names), or a
// checkpoint.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/tensor_source.h"
#include "checkpoint/weights_format.h"

namespace fsdp::checkpoint {

/// Names within a checkpoint begin with this where they are weights, and with the other where they are the
/// optimizer's.
inline constexpr const char* kWeightsPrefix = "model/";
inline constexpr const char* kOptimizerPrefix = "optimizer/";
/// And with this where they are averages of the weights over the steps of a run (optim's "ema").
inline constexpr const char* kAveragePrefix = "optimizer/ema/";

/// Named tensors on disk, read when asked. Not thread-safe.
class Weights {
 public:
  std::vector<std::string> names() const;
  bool contains(const std::string& name) const { return where_.contains(name); }
  const std::vector<int64_t>& shape(const std::string& name) const { return info(name).shape; }
  at::ScalarType dtype(const std::string& name) const { return info(name).dtype; }
  int64_t numel(const std::string& name) const;

  /// Shape and type under the name that the file gives the tensor; kCheckpoint when there is none.
  const TensorInfo& info(const std::string& name) const;

  const std::filesystem::path& path() const { return path_; }

  /// Fills a contiguous CPU tensor of the same shape, converting between floating-point types. kCheckpoint
  /// when the name is missing, the shape differs, or one type is a floating-point one and the other is not.
  void read_into(const std::string& name, const at::Tensor& tensor) const;

  /// The same for elements [begin, begin + tensor.numel()) of the flattened tensor; `tensor` is 1-D.
  void read_range_into(const std::string& name, int64_t begin, const at::Tensor& tensor) const;

  /// The same for columns [begin, begin + tensor.size(1)) of the tensor seen as [rows, numel / rows] with
  /// rows = tensor.size(0); `tensor` is 2-D. Reads nothing else, but whole rows where the pieces of rows are
  /// smaller than kSmallestPieceBytes.
  void read_columns_into(const std::string& name, int64_t begin, const at::Tensor& tensor) const;

  /// Less is not worth a read of its own: a file system reads no less.
  static constexpr int64_t kSmallestPieceBytes = 4096;

  /// Passes elements [begin, end) of the flattened tensor to `sink` in order, as 1-D tensors of type `dtype`
  /// of at most kSliceBytes as they are stored. The memory is used again after the sink has returned.
  void stream(const std::string& name, int64_t begin, int64_t end, at::ScalarType dtype,
              const std::function<void(const at::Tensor&)>& sink) const;

  static constexpr int64_t kSliceBytes = int64_t{16} << 20;

  /// Makes the tensors of a source, whose names begin with `prefix`, known without that prefix.
  void add(std::shared_ptr<const TensorSource> source, const std::string& prefix = "");

 private:
  friend Weights open_weights(const std::filesystem::path& path);
  friend Weights open_state(const std::filesystem::path& path);
  struct Place {
    TensorInfo info;
    std::shared_ptr<const TensorSource> source;
  };
  /// Memory that is kept from slice to slice: given back and taken again between the small pieces that HDF5
  /// keeps, it would leave holes, and the heap would grow to several times its size.
  class Scratch {
   public:
    at::Tensor elements(int64_t count, at::ScalarType dtype);

   private:
    at::Tensor memory_;
  };
  const Place& place_of(const std::string& name) const;
  void require_convertible(const std::string& name, at::ScalarType dtype) const;
  void add_files_of_index(const std::filesystem::path& folder);

  std::filesystem::path path_;
  std::map<std::string, Place> where_;
  mutable Scratch stored_, converted_;
};

/// The weights, under the names of the model's parameters. `path` is a file, a folder, or a run's output
/// folder (its newest complete checkpoint). kCheckpoint when the path holds no weights or damaged ones.
Weights open_weights(const std::filesystem::path& path);

/// All tensors of a checkpoint, the optimizer's too, under their full names ("model/...", "optimizer/...").
/// `path` is a step's folder or a run's output folder.
Weights open_state(const std::filesystem::path& path);

}  // namespace fsdp::checkpoint
