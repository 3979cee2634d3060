#pragma once

// The treatment of each parameter by the optimizer, which follows from its name and shape.

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
  bool decay = true;       ///< whether weight decay applies
  size_t group = 0;        ///< g > 0: OptimizerOptions::groups[g - 1]; 0: none
  bool matrix = false;     ///< updated as a whole matrix (Muon), not element by element
  bool factored = false;   ///< a matrix of whose rows and columns averages are kept (Adafactor)
  bool in_8_bits = false;  ///< its states are kept in 8 bits

  bool operator==(const Treatment&) const = default;
};

/// The treatment of a parameter. If patterns of several groups match, the first group applies.
Treatment treatment_of(const OptimizerOptions& options, const std::string& name,
                       const std::vector<int64_t>& shape);

/// The rate of a parameter with this treatment, given the rate `lr` of parameters without a group.
double lr_of(const OptimizerOptions& options, const Treatment& treatment, double lr);

double weight_decay_of(const OptimizerOptions& options, const Treatment& treatment);

/// Most elements of 16-bit weights and states that an update converts to fp32 at a time.
inline constexpr int64_t kPiece = int64_t{1} << 20;
/// Elements of states in 8 bits that share a scale (model/kernels/block_codes.h).
inline constexpr int64_t kStateBlock = 256;
/// Most elements of a piece that goes from host memory to the device and back (OptimizerOptions::offload).
inline constexpr int64_t kStreamedPiece = 8 << 20;

/// Name of the state that holds the average of the weights, for every optimizer.
inline constexpr const char* kEmaState = "ema";

/// A state that an optimizer keeps between steps: a number for each element, sharded like the parameters, or
/// for each row or column of matrices, whole on every rank.
struct StateKind {
  enum class Elements { kAll, kMatrices, kOthers, kRows, kColumns };

  std::string name;  ///< PyTorch's name of the state: "exp_avg"
  Elements elements = Elements::kAll;
  bool is_signed = true;  ///< whether its numbers may be negative
  StateType type = StateType::kFloat32;

  /// The type of the numbers for tensors with this treatment, and the bytes of n of them.
  StateType type_of(const Treatment& treatment) const;
  int64_t bytes(const Treatment& treatment, int64_t n) const;
  /// Whether the state is flat like a unit's shard, with its padding.
  bool is_flat() const { return elements == Elements::kAll && type != StateType::kInt8; }
  bool is_whole() const { return elements == Elements::kRows || elements == Elements::kColumns; }
  /// Whether the elements, or the rows or columns, of tensors with this treatment have the state.
  bool covers(const Treatment& treatment) const;
  /// How many numbers the state has for a whole tensor of this shape. Requires: the state covers the tensor.
  int64_t numel(const std::vector<int64_t>& shape) const;
};

/// Properties of an optimizer that are known without making one.
struct OptimizerTraits {
  /// The states except the average of the weights; null: none.
  std::vector<StateKind> (*states)(const OptimizerOptions&) = nullptr;
  double default_weight_decay = 0;
  /// The keys of [optimizer] that this optimizer reads and some other does not, such as "betas". Not given
  /// for plug-ins, whose keys are unknown.
  std::optional<std::vector<std::string>> keys = std::nullopt;
  double default_eps = 1e-8;
  bool updates_alone = true;  ///< see Optimizer::updates_alone()
};

/// Registry of optimizers, keyed by values of OptimizerOptions::name.
util::Registry<OptimizerTraits>& optimizer_traits();
/// The keys of optimizer_traits().
std::vector<std::string> optimizer_names();

/// Lengths of the all-reduces by which the optimizer adds up sums over the ranks in a step, for a unit with
/// tensors of these shapes (state/optim/tensor_optimizer.h). Empty for optimizers that do not need whole
/// tensors.
std::vector<int64_t> sums_of_tensors(const OptimizerOptions& options,
                                     const std::vector<std::vector<int64_t>>& shapes);

/// The optimizer's states (none for an unknown name) and, last, the average of the weights.
std::vector<StateKind> state_kinds(const OptimizerOptions& options);

}  // namespace fsdp::optim
