#pragma once

// The part of a parameter that a rank has of a layer that several ranks compute together
// (model/nn/parallelize.h).

#include <cstdint>
#include <string>
#include <vector>

#include "base/util/rectangle.h"

namespace fsdp::nn {

/// Part of a parameter that a rank has.
struct ParameterPart {
  std::string name;  ///< the first of a tied one
  std::vector<int64_t> whole_shape;
  std::vector<int64_t> shape;  ///< shape of the part
  util::Rectangle range;       ///< part of the whole; all of it if the parameter is repeated
  /// Ranges of all ranks of the group; empty if the parameter is repeated.
  std::vector<util::Rectangle> ranges_of_ranks{};
  /// Ranks [first_holder, first_holder + holders) of the group have this part: 1 for a cut parameter, several
  /// for the head of keys that they share, all for a repeated one.
  int64_t first_holder = 0, holders = 1;
  /// Each holder's gradient is its share of the gradient, which is their sum over the holders. Else each
  /// holder has all of it.
  bool shares_gradient = false;

  bool is_whole() const { return shape == whole_shape; }
};

}  // namespace fsdp::nn
