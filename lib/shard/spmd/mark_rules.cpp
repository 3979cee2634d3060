#include "shard/spmd/mark_rules.h"

#include <ATen/WrapDimUtils.h>

#include <algorithm>
#include <map>
#include <set>

namespace fsdp::shard {
namespace {

using Axes = PartitionSpec::Axes;
using Answer = std::optional<Cuts>;

/// `into` with `axes`; false if it has others.
bool merge(Axes& into, const Axes& axes) {
  if (into.empty()) into = axes;
  return axes.empty() || into == axes;
}

/// Nothing if an axis cuts two dimensions.
Answer if_axes_differ(Cuts cuts) {
  std::set<comm::MeshAxis> seen;
  for (const Axes& axes : cuts) {
    for (comm::MeshAxis axis : axes) {
      if (!seen.insert(axis).second) return std::nullopt;
    }
  }
  return cuts;
}

/// Aligns operands on their last dimensions, as broadcasting does.
Answer elementwise(const MarkedCall& call, at::IntArrayRef sizes, size_t) {
  Cuts result(sizes.size());
  for (const MarkedOperand& operand : call.operands) {
    if (operand.sizes.size() > sizes.size()) return std::nullopt;
    const size_t first = sizes.size() - operand.sizes.size();
    for (size_t i = 0; i < operand.sizes.size(); ++i) {
      const Axes& axes = operand.cuts[i];
      if (!axes.empty() && operand.sizes[i] != sizes[first + i]) return std::nullopt;
      if (!merge(result[first + i], axes)) return std::nullopt;
    }
  }
  return if_axes_differ(std::move(result));
}

int64_t dimension_at(const MarkedCall& call, size_t argument, size_t dimensions) {
  return at::maybe_wrap_dim(call.arguments[argument].toInt(), static_cast<int64_t>(dimensions));
}

Answer transpose(const MarkedCall& call, at::IntArrayRef, size_t) {
  Cuts cuts = call.operands[0].cuts;
  if (call.arguments.size() == 1) {  // t()
    std::reverse(cuts.begin(), cuts.end());
  } else {
    std::swap(cuts[dimension_at(call, 1, cuts.size())], cuts[dimension_at(call, 2, cuts.size())]);
  }
  return cuts;
}

Answer permute(const MarkedCall& call, at::IntArrayRef, size_t) {
  const Cuts& cuts = call.operands[0].cuts;
  Cuts result;
  for (int64_t dimension : call.arguments[1].toIntVector()) {
    result.push_back(cuts[at::maybe_wrap_dim(dimension, static_cast<int64_t>(cuts.size()))]);
  }
  return result;
}

Answer unsqueeze(const MarkedCall& call, at::IntArrayRef sizes, size_t) {
  Cuts cuts = call.operands[0].cuts;
  cuts.insert(cuts.begin() + dimension_at(call, 1, sizes.size()), Axes());
  return cuts;
}

/// The sizes of joined or split dimensions; a group is a run of dimensions on either side with one product.
/// A cut on the first dimension of a group stays there: a rank's part is a run of the group's elements.
Answer view(const MarkedCall& call, at::IntArrayRef sizes, size_t) {
  const MarkedOperand& from = call.operands[0];
  Cuts result(sizes.size());
  size_t i = 0, j = 0;
  while (i < from.sizes.size() || j < sizes.size()) {
    const size_t first_from = i, first_to = j;
    int64_t product_from = i < from.sizes.size() ? from.sizes[i++] : 1;
    int64_t product_to = j < sizes.size() ? sizes[j++] : 1;
    while (product_from != product_to) {
      const bool from_is_behind = product_from < product_to;
      if (from_is_behind && i < from.sizes.size()) {
        product_from *= from.sizes[i++];
      } else if (!from_is_behind && j < sizes.size()) {
        product_to *= sizes[j++];
      } else {
        return std::nullopt;  // a dimension of no elements
      }
    }
    bool leads = true;  // only dimensions of one element lie before it in the group
    for (size_t k = first_from; k < i; ++k) {
      if (!from.cuts[k].empty()) {
        // A new first dimension of one element could be whole, or count the parts.
        const bool is_ambiguous = first_to == j || (sizes[first_to] == 1 && from.sizes[k] != 1);
        if (!leads || is_ambiguous) return std::nullopt;
        result[first_to] = from.cuts[k];
        leads = false;
      }
      leads = leads && from.sizes[k] == 1;
    }
  }
  return result;
}

/// Some elements along dimensions that are whole.
Answer slice(const MarkedCall& call, at::IntArrayRef sizes, size_t) {
  const MarkedOperand& from = call.operands[0];
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (!from.cuts[i].empty() && from.sizes[i] != sizes[i]) return std::nullopt;
  }
  return from.cuts;
}

/// One dimension is gone, which must be whole.
Answer without(const MarkedCall& call, int64_t dimension) {
  Cuts cuts = call.operands[0].cuts;
  if (!cuts[dimension].empty()) return std::nullopt;
  cuts.erase(cuts.begin() + dimension);
  return cuts;
}

Answer select(const MarkedCall& call, at::IntArrayRef, size_t) {
  return without(call, dimension_at(call, 1, call.operands[0].sizes.size()));
}

Answer squeeze(const MarkedCall& call, at::IntArrayRef sizes, size_t) {
  const MarkedOperand& from = call.operands[0];
  if (sizes == at::IntArrayRef(from.sizes)) return from.cuts;
  if (call.arguments.size() == 2 && call.arguments[1].isInt()) return select(call, sizes, 0);
  Cuts cuts;
  for (size_t i = 0; i < from.sizes.size(); ++i) {
    if (from.sizes[i] != 1) {
      cuts.push_back(from.cuts[i]);
    } else if (!from.cuts[i].empty() || call.arguments.size() == 2) {
      return std::nullopt;
    }
  }
  return cuts;
}

/// [.., R, K] x [.., K, C], two operands of one rank from `first` on; an operand before them is added.
Answer product(const MarkedCall& call, at::IntArrayRef sizes, size_t first) {
  if (call.operands.size() < first + 2) return std::nullopt;
  const MarkedOperand &a = call.operands[first], &b = call.operands[first + 1];
  const size_t n = sizes.size();
  if (n < 2 || a.sizes.size() != n || b.sizes.size() != n) return std::nullopt;
  if (!a.cuts[n - 1].empty() || !b.cuts[n - 2].empty()) return std::nullopt;
  Cuts result = a.cuts;
  result[n - 1] = b.cuts[n - 1];
  for (size_t i = 0; i + 2 < n; ++i) {
    if (!merge(result[i], b.cuts[i])) return std::nullopt;
  }
  if (first == 0) return if_axes_differ(std::move(result));
  const MarkedOperand so_far{sizes.vec(), std::move(result)};
  return elementwise({.operands = {call.operands[0], so_far}, .arguments = {}}, sizes, 0);
}

Answer plain_product(const MarkedCall& call, at::IntArrayRef sizes, size_t) {
  return product(call, sizes, 0);
}
Answer product_and_sum(const MarkedCall& call, at::IntArrayRef sizes, size_t) {
  return product(call, sizes, 1);
}

/// x [.., K], weight [N, K]; bias [N] or none
Answer linear(const MarkedCall& call, at::IntArrayRef, size_t) {
  Cuts cuts = call.operands[0].cuts;
  const Cuts& weight = call.operands[1].cuts;
  if (!cuts.back().empty() || weight.size() != 2 || !weight[1].empty()) return std::nullopt;
  cuts.back() = weight[0];
  if (call.operands.size() > 2 && !merge(cuts.back(), call.operands[2].cuts[0])) return std::nullopt;
  return if_axes_differ(std::move(cuts));
}

Answer softmax(const MarkedCall& call, at::IntArrayRef, size_t) {
  const Cuts& cuts = call.operands[0].cuts;
  if (!cuts.empty() && !cuts[dimension_at(call, 1, cuts.size())].empty()) return std::nullopt;
  return cuts;
}

/// Over the last dimensions; the other results, mean and deviation, have no mark.
Answer layer_norm(const MarkedCall& call, at::IntArrayRef, size_t index) {
  const Cuts& cuts = call.operands[0].cuts;
  const size_t normalized = call.arguments[1].toIntVector().size();
  const bool is_whole =
      std::all_of(cuts.end() - normalized, cuts.end(), [](const Axes& axes) { return axes.empty(); });
  return index == 0 && is_whole ? Answer(cuts) : std::nullopt;
}

const std::map<std::string_view, MarkRule>& table() {
  static const auto kTable = [] {
    std::map<std::string_view, MarkRule> rules = {{"t", transpose},
                                                  {"transpose", transpose},
                                                  {"permute", permute},
                                                  {"unsqueeze", unsqueeze},
                                                  {"squeeze", squeeze},
                                                  {"select", select},
                                                  {"view", view},
                                                  {"_unsafe_view", view},
                                                  {"reshape", view},
                                                  {"_reshape_alias", view},
                                                  {"slice", slice},
                                                  {"split", slice},
                                                  {"split_with_sizes", slice},
                                                  {"mm", plain_product},
                                                  {"bmm", plain_product},
                                                  {"addmm", product_and_sum},
                                                  {"baddbmm", product_and_sum},
                                                  {"linear", linear},
                                                  {"_softmax", softmax},
                                                  {"_log_softmax", softmax},
                                                  {"native_layer_norm", layer_norm}};
    for (const char* operation : {"abs",         "add",
                                  "alias",       "bernoulli",
                                  "clamp",       "clone",
                                  "copy",        "cos",
                                  "detach",      "div",
                                  "dropout",     "elu",
                                  "empty_like",  "eq",
                                  "erf",         "exp",
                                  "expand",      "ge",
                                  "gelu",        "gt",
                                  "le",          "leaky_relu",
                                  "lerp",        "log",
                                  "log1p",       "logical_and",
                                  "logical_not", "logical_or",
                                  "lt",          "masked_fill",
                                  "maximum",     "minimum",
                                  "mul",         "native_dropout",
                                  "ne",          "neg",
                                  "ones_like",   "pow",
                                  "rand_like",   "randn_like",
                                  "reciprocal",  "relu",
                                  "rsqrt",       "rsub",
                                  "sigmoid",     "sign",
                                  "silu",        "sin",
                                  "softplus",    "sqrt",
                                  "square",      "sub",
                                  "tanh",        "_to_copy",
                                  "where",       "zeros_like"}) {
      rules.emplace(operation, elementwise);
    }
    return rules;
  }();
  return kTable;
}

}  // namespace

MarkRule mark_rule(std::string_view operation) {
  // add_ is add into the first operand, mul.out is mul.
  if (operation.size() > 1 && operation.ends_with('_') && !operation.ends_with("__"))
    operation.remove_suffix(1);
  const auto found = table().find(operation);
  return found == table().end() ? nullptr : found->second;
}

}  // namespace fsdp::shard
