#pragma once

// Rules by which marks follow through operations, from the cuts of the operands to the cuts of a result. An
// operation that is not in the table, and operands whose cuts do not determine the result, have no answer.
//
//   operations                              where a result is cut
//   elementwise (with broadcasting)         where the operands are; none may contradict another
//   transpose, permute, squeeze, unsqueeze  on the same dimensions at their new places
//   view, reshape                           on the same dimension; or, where dimensions are joined or split,
//                                           on the first of the group
//   slice, select, split                    as the operand, on whose cut dimensions nothing is left out
//   mm, bmm, addmm, linear                  as the rows of the first factor and the columns of the second;
//                                           the dimension that is summed over must be whole
//   softmax, layer norm                     as the operand, along whose whole dimensions they run

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <optional>
#include <string_view>
#include <vector>

#include "shard/spmd/sharding_marks.h"

namespace fsdp::shard {

/// The axes on which each dimension of a tensor is cut.
using Cuts = std::vector<PartitionSpec::Axes>;

/// A tensor that an operation takes. A tensor without a mark counts as whole.
struct MarkedOperand {
  std::vector<int64_t> sizes;
  Cuts cuts;
};

struct MarkedCall {
  std::vector<MarkedOperand> operands;  ///< operands, in the order of the arguments
  std::vector<c10::IValue> arguments;   ///< None for the tensors
};

/// The cuts of the result number `index` with these sizes; nullopt if they are not determined.
using MarkRule = std::optional<Cuts> (*)(const MarkedCall& call, at::IntArrayRef sizes, size_t index);

/// The rule for an operation ("mm", "add_"); null if the table has none.
MarkRule mark_rule(std::string_view operation);

}  // namespace fsdp::shard
