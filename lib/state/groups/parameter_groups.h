#pragma once

// The treatment of each parameter by the optimizer, from its name and shape. Needs no libtorch.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/util/registry.h"
#include "state/groups/options.h"

namespace fsdp::optim {

/// How an update treats the elements of a parameter.
struct Treatment {
  bool decay = true;      ///< whether weight decay applies
  size_t group = 0;       ///< g > 0: OptimizerOptions::groups[g - 1]; 0: none
  bool matrix = false;    ///< updated as a whole matrix (Muon), not element by element
  bool factored = false;  ///< a matrix of whose rows and columns averages are kept (Adafactor)

  bool operator==(const Treatment&) const = default;
};

/// If patterns of several groups match, the first group applies.
Treatment treatment_of(const OptimizerOptions& options, const std::string& name,
                       const std::vector<int64_t>& shape);

/// The rate of such a parameter when `lr` is that of parameters without a group.
double lr_of(const OptimizerOptions& options, const Treatment& treatment, double lr);

double weight_decay_of(const OptimizerOptions& options, const Treatment& treatment);

/// Elements of weights that are kept in 16 bits and are in fp32 at once during an update.
inline constexpr int64_t kPiece = int64_t{1} << 20;

/// The state with the average of the weights, for every optimizer.
inline constexpr const char* kEmaState = "ema";

/// A state that an optimizer keeps between steps: a number for each element, sharded like the parameters, or
/// for each row or column of matrices, whole on every rank.
struct StateKind {
  enum class Elements { kAll, kMatrices, kOthers, kRows, kColumns };

  std::string name;  ///< PyTorch's: "exp_avg"
  Elements elements = Elements::kAll;

  bool is_whole() const { return elements == Elements::kRows || elements == Elements::kColumns; }
  /// Whether the elements, or the rows or columns, of such tensors have the state.
  bool covers(const Treatment& treatment) const;
  /// Numbers of a whole tensor of this shape, which the state covers.
  int64_t numel(const std::vector<int64_t>& shape) const;
};

/// What is known of an optimizer without making one.
struct OptimizerTraits {
  std::vector<StateKind> (*states)(const OptimizerOptions&) = nullptr;  ///< without the average; null: none
  double default_weight_decay = 0;
  /// Keys of [optimizer] that not every optimizer reads, of those that this one does: "betas". Not given, for
  /// plug-ins: unknown.
  std::optional<std::vector<std::string>> keys = std::nullopt;
  double default_eps = 1e-8;
  bool updates_alone = true;  ///< see Optimizer::updates_alone()
};

/// By values of OptimizerOptions::name.
util::Registry<OptimizerTraits>& optimizer_traits();
/// The keys of optimizer_traits().
std::vector<std::string> optimizer_names();

/// The lengths of the sums that the optimizer adds up over the ranks in a step for a unit with tensors of
/// these shapes (state/optim/tensor_optimizer.h), one all-reduce each; none unless it looks at whole tensors.
std::vector<int64_t> sums_of_tensors(const OptimizerOptions& options,
                                     const std::vector<std::vector<int64_t>>& shapes);

/// The optimizer's states (none for an unknown name) and, last, the average of the weights.
std::vector<StateKind> state_kinds(const OptimizerOptions& options);

}  // namespace fsdp::optim
