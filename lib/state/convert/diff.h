#pragma once

// Differences between two checkpoints, or between two sets of weights of any format.

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/util/progress_bar.h"
#include "state/weights/weights.h"

namespace fsdp::checkpoint {

struct DiffOptions {
  /// Largest difference of elements that count as equal. If given, only values are compared, not types. Not
  /// given: values and types must be equal.
  std::optional<double> tolerance{};
  util::ByteProgress progress{};
};

/// A tensor that both sides have and that is not equal. Values are compared if the shapes are equal and both
/// types or neither are floating-point.
struct TensorDifference {
  TensorInfo a, b;
  bool compared = false;
  int64_t differing = 0;               ///< number of elements that differ by more than the tolerance
  double max_absolute_difference = 0;  ///< infinite if a number is compared with a NaN or an infinity
  double max_relative_difference = 0;  ///< maximum of |a - b| / max(|a|, |b|), at most 2
};

struct Difference {
  std::vector<std::string> only_in_a, only_in_b;
  std::vector<TensorDifference> tensors;
  int64_t equal_tensors = 0;

  bool empty() const { return only_in_a.empty() && only_in_b.empty() && tensors.empty(); }
};

/// Compares all tensors of two checkpoints. If a side is safetensors, compares only the weights, under the
/// names of the model's parameters. NaN equals NaN, and 0 equals -0. Memory is bounded. Throws
/// Error(kCheckpoint) if a side cannot be read or is damaged.
Difference diff(const std::filesystem::path& a, const std::filesystem::path& b, const DiffOptions& options);

/// The difference as JSON: {equal, equal_tensors, only_in_a, only_in_b, different: [{name, a: {shape, dtype},
/// b: {...}, differing, max_absolute_difference, max_relative_difference}]}. Differences that are not finite
/// are "inf". The last three are null if values were not compared.
nlohmann::json diff_as_json(const Difference& difference);

/// The difference as text for people.
std::string diff_as_text(const Difference& difference);

}  // namespace fsdp::checkpoint
