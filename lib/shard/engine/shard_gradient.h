#pragma once

// The gradient of a rank's shard of a unit: the mean over ranks, added up over micro-batches.
//
// Optimizers of this library take it in one piece. Optimizers of torch::optim take leaves, each with a
// gradient of its own: see leaves_of(). Their changes to the leaves' gradients count: after an optimizer's
// zero_grad() a new sum begins.

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include "shard/engine/parameter_source.h"
#include "shard/units/unit_layout.h"

namespace fsdp::shard {

/// This rank's part of a trainable parameter, as a leaf of autograd.
struct ShardLeaf {
  size_t parameter = 0;  ///< index into the parameters of the unit's layout
  int64_t offset = 0;    ///< place of its first element in the shard
  at::Tensor tensor;     ///< 1-D view of the shard; its gradient is a view of ShardGradient::sum()
};

class ShardGradient {
 public:
  /// `type`: type of the sum.
  explicit ShardGradient(at::ScalarType type) : type_(type) {}

  /// [shard_numel]; undefined without a gradient.
  const at::Tensor& sum() const { return sum_; }
  void clear();
  /// Adds `mean` [shard_numel], whose sum of squares is `squares` if that is known; may keep a reference to
  /// it.
  void add(const at::Tensor& mean, std::optional<double> squares = std::nullopt);
  /// Adds sums over some of the ranks only. Throws Error(kUsage) where there is a mean already.
  void add_partial(const at::Tensor& sums);
  /// Returns the sums that add_partial() has added, and leaves no gradient.
  at::Tensor take_partial();
  bool is_partial() const { return is_partial_ && sum_.defined(); }
  /// The sum of squares, if it is known without reading the gradient.
  std::optional<double> squares() const;

  /// Returns the leaves of the trainable parameters of which this rank has a part, the same tensors at each
  /// call. From the first call on, their gradients are views of the sum.
  const std::vector<ShardLeaf>& leaves_of(const UnitLayout& layout, int rank, const at::Tensor& shard,
                                          const std::vector<NamedParameter>& parameters);
  bool has_leaves() const { return !leaves_.empty(); }

 private:
  void drop_what_leaves_dropped();
  void show_in_leaves();

  at::ScalarType type_;
  at::Tensor sum_;
  bool is_partial_ = false;
  std::optional<double> squares_;  ///< sum of squares of the sum's version `squared_`
  int64_t squared_ = 0;
  std::vector<ShardLeaf> leaves_;
};

}  // namespace fsdp::shard
