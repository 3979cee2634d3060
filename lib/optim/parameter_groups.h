#pragma once

// How the optimizer's options treat each parameter, by its name and shape. Needs no libtorch.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "optim/options.h"
#include "util/registry.h"

namespace fsdp::optim {

/// What the elements of a parameter have in common in an update.
struct Treatment {
  bool decay = true;    ///< whether weight decay applies
  size_t group = 0;     ///< g > 0: OptimizerOptions::groups[g - 1]; 0: none
  bool matrix = false;  ///< updated as a whole matrix (Muon), not element by element

  bool operator==(const Treatment&) const = default;
};

/// Of several groups whose patterns match, the first counts.
Treatment treatment_of(const OptimizerOptions& options, const std::string& name,
                       const std::vector<int64_t>& shape);

/// The rate of such a parameter, where others have `lr`.
double lr_of(const OptimizerOptions& options, const Treatment& treatment, double lr);

double weight_decay_of(const OptimizerOptions& options, const Treatment& treatment);

/// The state that is an average of the weights, whatever the optimizer.
inline constexpr const char* kEmaState = "ema";

/// What an optimizer keeps of each element between steps.
struct StateKind {
  enum class Elements { kAll, kMatrices, kOthers };

  std::string name;  ///< as PyTorch has it: "exp_avg"
  Elements elements = Elements::kAll;

  bool covers(bool matrix) const {
    return elements == Elements::kAll || (elements == Elements::kMatrices) == matrix;
  }
};

/// What the options say of an optimizer without making one.
struct OptimizerTraits {
  std::vector<StateKind> (*states)(const OptimizerOptions&) = nullptr;  ///< its own; null: none
  double default_weight_decay = 0;
};

/// What OptimizerOptions::name can be.
util::Registry<OptimizerTraits>& optimizer_traits();
/// The names of these.
std::vector<std::string> optimizer_names();

/// Those of the optimizer of that name, and the average of the weights last; none for an unknown name.
std::vector<StateKind> state_kinds(const OptimizerOptions& options);

}  // namespace fsdp::optim
