#pragma once

// Arithmetic that makes one model of several, tensor by tensor. Names and results are mergekit's
// (github.com/arcee-ai/mergekit), computed in fp64.
//
//   linear           sum of w_i x_i, divided by the sum of the w_i
//   slerp            from the first of two models to the second, on the arc between the tensors as vectors
//                    (Shoemake: Animating rotation with quaternion curves, 1985)
//   task_arithmetic  base + lambda * sum of w_i d_i, where d_i = x_i - base (Ilharco et al.: Editing models
//                    with task arithmetic, 2022)
//   ties             the same of the largest elements of each d_i, without those whose sign is not that of
//                    the sum, divided by the sum of the w_i that remain (Yadav et al.: TIES-Merging, 2023)

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/util/enum_names.h"
#include "state/weights/weights.h"

namespace fsdp::checkpoint {

enum class MergeMethod { kLinear, kSlerp, kTaskArithmetic, kTies };
constexpr auto enum_names(MergeMethod) {
  return std::to_array<util::EnumName<MergeMethod>>({{MergeMethod::kLinear, "linear"},
                                                     {MergeMethod::kSlerp, "slerp"},
                                                     {MergeMethod::kTaskArithmetic, "task_arithmetic"},
                                                     {MergeMethod::kTies, "ties"}});
}

struct MergeOptions {
  util::Named<MergeMethod> method = MergeMethod::kLinear;
  std::vector<double> weights = {};        ///< of the models; none: 1 for each
  std::optional<double> t = std::nullopt;  ///< slerp: 0 is the first model, 1 the second; default: 0.5
  /// ties: share of the elements of each difference that is used; default: 1.
  std::optional<double> density = std::nullopt;
  std::optional<double> lambda = std::nullopt;  ///< task_arithmetic, ties; default: 1
  /// Whether sums are divided by those of their weights; default: not with task_arithmetic.
  std::optional<bool> normalize = std::nullopt;
};

/// Throws Error(kUsage) for options that the method does not have, or that do not fit so many models.
void check_merge(const MergeOptions& options, size_t models, bool has_base);

/// Several models with the same tensors. Memory is bounded. Not thread-safe.
class Merge {
 public:
  /// base: one for methods that add differences to it.
  Merge(MergeOptions options, std::vector<Weights> models, std::optional<Weights> base);

  const std::vector<Weights>& models() const { return models_; }
  const std::optional<Weights>& base() const { return base_; }

  /// Elements [begin, begin + count) of the merged tensor, in memory that the next call uses again. fp64
  /// [count]; count <= kElementsAtOnce
  at::Tensor merged(const std::string& name, int64_t begin, int64_t count);

  static constexpr int64_t kElementsAtOnce = int64_t{1} << 20;

 private:
  at::Tensor of_models(const std::string& name, int64_t begin, int64_t count);
  at::Tensor of_differences(const std::string& name, int64_t begin, int64_t count);
  /// Reads a piece of a model, or of its difference from the base, to place `place`.
  at::Tensor read(const Weights& weights, const std::string& name, int64_t begin, int64_t count,
                  size_t place);
  void note_tensor(const std::string& name);
  std::array<double, 2> arc(const std::string& name);
  float least_magnitude(const Weights& model, const std::string& name, int64_t kept);
  double weight(size_t model) const { return options_.weights.empty() ? 1 : options_.weights[model]; }

  MergeOptions options_;
  std::vector<Weights> models_;
  std::optional<Weights> base_;
  std::vector<at::Tensor> memory_;
  // Of the tensor that was merged last.
  std::string tensor_;
  std::array<double, 2> factors_{};  ///< slerp: of the two models
  std::vector<float> least_;         ///< ties: the least magnitude that is used, of each model
};

}  // namespace fsdp::checkpoint
