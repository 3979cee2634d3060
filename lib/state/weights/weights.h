#pragma once

// Named tensors on disk, read by ranges, in any format: safetensors in Hugging Face's layout (one file, or a
// folder with model.safetensors or with model.safetensors.index.json and the files that it names), a GGUF
// file, or a checkpoint.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/util/rectangle.h"

namespace fsdp::checkpoint {

struct TensorInfo {
  std::string name;
  std::vector<int64_t> shape;
  c10::ScalarType dtype = c10::ScalarType::Float;
};

/// Bytes of the elements. Negative if util::checked_numel() finds the shape impossible.
int64_t bytes_of(const TensorInfo& info);
int64_t bytes_of(const std::vector<TensorInfo>& infos);

/// One file, or one checkpoint of several files. Memory is bounded by the description. Not thread-safe.
class TensorSource {
 public:
  virtual ~TensorSource() = default;

  virtual const std::filesystem::path& path() const = 0;

  /// The tensors, sorted by name.
  virtual std::vector<TensorInfo> infos() const = 0;

  /// Reads elements [begin, end) of the flattened tensor, bitwise as stored.
  virtual void read(const std::string& name, int64_t begin, int64_t end, void* out) const = 0;
};

/// Prefixes of names within a checkpoint: of the weights, of the optimizer's state, and of the averages of
/// the weights over the steps of a run, which are part of that state (optim's "ema"). Errors of quantized
/// gradients (state/checkpoint/error_slices.h) are of use only to a run with the same ranks.
inline constexpr const char* kWeightsPrefix = "model/";
inline constexpr const char* kOptimizerPrefix = "optimizer/";
inline constexpr const char* kAveragePrefix = "optimizer/ema/";
inline constexpr const char* kErrorPrefix = "error_feedback/";

/// Whether a tensor of a checkpoint is a state of local steps, which runs without them do not have
/// (state/outer/outer_slices.h).
inline bool is_of_local_steps(std::string_view name) {
  if (!name.starts_with(kOptimizerPrefix)) return false;
  name.remove_prefix(std::string_view(kOptimizerPrefix).size());
  const std::string_view state = name.substr(0, name.find('/'));
  return state == "outer_momentum" || state == "outer_delta" || state == "local_weights" ||
         state.find(".replica") != std::string_view::npos;
}

/// The tensors of one or several sources, read on request. Not thread-safe.
class Weights {
 public:
  Weights() = default;
  /// Makes an object without tensors. `path` is for messages.
  explicit Weights(std::filesystem::path path) : path_(std::move(path)) {}

  std::vector<std::string> names() const;
  bool contains(const std::string& name) const { return where_.contains(name); }
  const std::vector<int64_t>& shape(const std::string& name) const { return info(name).shape; }
  at::ScalarType dtype(const std::string& name) const { return info(name).dtype; }
  int64_t numel(const std::string& name) const;

  /// Shape, type and name of the tensor in its file. Throws Error(kCheckpoint) if there is no such tensor.
  const TensorInfo& info(const std::string& name) const;

  const std::filesystem::path& path() const { return path_; }

  /// Sets whether a conversion replaces values that are too large for the new type by its largest value.
  /// Otherwise they are an error.
  void set_saturating(bool saturates) { saturates_ = saturates; }

  /// Fills a contiguous CPU tensor of the same shape, converting between floating-point types. Throws
  /// Error(kCheckpoint) if the name is missing, the shape differs, or only one of the two types is a
  /// floating-point type, and as convert_values().
  void read_into(const std::string& name, const at::Tensor& tensor) const;

  /// Like read_into(), for elements [begin, begin + tensor.numel()) of the flattened tensor. `tensor` is 1-D.
  void read_range_into(const std::string& name, int64_t begin, const at::Tensor& tensor) const;

  /// Like read_into(), for the elements of a part. `tensor` is 1-D. Reads whole rows of the part's view if
  /// the part's piece of a row is smaller than kSmallestPieceBytes, otherwise only the part's columns.
  void read_part_into(const std::string& name, const util::Rectangle& part, const at::Tensor& tensor) const;

  /// A smaller piece does not justify a read of its own, because a file system does not read less.
  static constexpr int64_t kSmallestPieceBytes = 4096;

  /// Passes elements [begin, end) of the flattened tensor to `sink` in order, as 1-D tensors of type `dtype`
  /// of at most kSliceBytes in the stored type. The memory of a tensor is reused after the sink has returned.
  void stream(const std::string& name, int64_t begin, int64_t end, at::ScalarType dtype,
              const std::function<void(const at::Tensor&)>& sink) const;

  static constexpr int64_t kSliceBytes = int64_t{16} << 20;

  /// Adds rows to a floating-point matrix, up to `rows` in all (state/weights/extended_rows.h).
  void extend(const std::string& name, int64_t rows);

  /// Adds the tensors of a source whose names begin with `prefix`, under the names without it.
  void add(std::shared_ptr<const TensorSource> source, const std::string& prefix = "");

 private:
  friend Weights open_weights(const std::filesystem::path& path);
  friend Weights open_state(const std::filesystem::path& path);
  struct TensorPlace {
    TensorInfo info;
    std::shared_ptr<const TensorSource> source;
  };
  /// Memory that is kept from slice to slice. Freeing and allocating it between the small blocks that HDF5
  /// keeps would fragment the heap, which would grow to several times its size.
  class SliceScratch {
   public:
    at::Tensor elements(int64_t count, at::ScalarType dtype);

   private:
    at::Tensor memory_;
  };
  const TensorPlace& place_of(const std::string& name) const;
  void require_convertible(const std::string& name, at::ScalarType dtype) const;
  void add_files_of_index(const std::filesystem::path& folder);

  std::filesystem::path path_;
  std::map<std::string, TensorPlace> where_;
  bool saturates_ = false;
  mutable SliceScratch stored_, converted_;
};

/// Copies floating-point values to a tensor of another type. Finite values may not fit that type (from 65520
/// on in float16). They become the largest value that fits if `saturates`, otherwise Error(kCheckpoint) that
/// names the tensor is thrown.
void convert_values(const at::Tensor& from, const at::Tensor& to, const std::string& name, bool saturates);

/// Opens weights under the names of the model's parameters. `path` is a file, a folder, or a run's output
/// folder (its newest complete checkpoint). For a checkpoint of adapters: the weights of its base with the
/// adapters merged in. Throws Error(kCheckpoint) if the path holds no weights or damaged weights.
Weights open_weights(const std::filesystem::path& path);

/// Opens all tensors of a checkpoint, including the optimizer's, under their full names ("model/...",
/// "optimizer/..."). `path` is a step's folder or a run's output folder.
Weights open_state(const std::filesystem::path& path);

/// Throws Error(kCheckpoint) if a checkpoint has no averages of weights.
void require_averages(const TensorSource& checkpoint);

/// The type of all floating-point tensors. Nothing if they have several types.
std::optional<c10::ScalarType> common_dtype(const Weights& weights);

}  // namespace fsdp::checkpoint
