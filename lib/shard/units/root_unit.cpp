#include "shard/units/root_unit.h"

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <utility>

#include "base/util/error.h"
#include "base/util/text.h"

namespace fsdp::shard {
namespace {

/// Negligible share of a model's parameters. Norms of blocks are below it where the other parameters form
/// units.
constexpr double kNegligible = 0.01;

/// "model.layers." and 3 for "model.layers.3.mlp.weight"; a negative number where no part of the name is one.
std::pair<std::string, int64_t> block_of(const std::string& name) {
  constexpr size_t kMostDigits = 9;
  for (size_t begin = 0; begin < name.size();) {
    const size_t end = std::min(name.find('.', begin), name.size());
    const std::string part = name.substr(begin, end - begin);
    const bool is_number = !part.empty() && part.size() <= kMostDigits &&
                           part.find_first_not_of("0123456789") == std::string::npos;
    if (is_number) return {name.substr(0, begin), std::stoll(part)};
    begin = end + 1;
  }
  return {"", -1};
}

}  // namespace

BlocksInRoot blocks_in_root(const std::vector<UnitSizes>& units) {
  std::map<std::string, std::map<int64_t, int64_t>>
      kinds;  // elements in the root, by kind and number of block
  BlocksInRoot found;
  int64_t all = 0;
  for (const UnitSizes& unit : units) {
    all += unit.numel;
    // Other units with the root's lifetime hold parameters that the user chose by name.
    if (unit.name != "root" || !unit.is_cut()) continue;
    for (const ParameterSizes& parameter : unit.parameters) {
      const auto [kind, number] = block_of(parameter.name);
      if (number < 0) continue;
      const int64_t numel =
          std::accumulate(parameter.shape.begin(), parameter.shape.end(), int64_t{1}, std::multiplies<>());
      kinds[kind][number] += numel;
      found.numel += numel;
      found.unsharded_bytes += numel * unit.param_element();
    }
  }
  const auto most = std::max_element(kinds.begin(), kinds.end(), [](const auto& a, const auto& b) {
    return a.second.size() < b.second.size();
  });
  if (most == kinds.end() || most->second.size() < 2) return {};
  if (found.numel < kNegligible * static_cast<double>(all)) return {};
  const auto& [kind, blocks] = *most;
  found.blocks = static_cast<int64_t>(blocks.size());
  found.first = concat(kind, blocks.begin()->first);
  found.last = concat(kind, blocks.rbegin()->first);
  found.least_numel = blocks.begin()->second;
  for (const auto& [number, numel] : blocks) found.least_numel = std::min(found.least_numel, numel);
  return found;
}

std::string BlocksInRoot::text(int64_t min_num_params) const {
  if (blocks == 0) return "";
  const bool too_high = least_numel < min_num_params;
  return concat(
      "the root unit holds ", util::with_commas(numel), " parameters of ", blocks, " blocks (", first,
      " ... ", last, "), which stay gathered from the beginning of forward to the end of backward and take ",
      util::human_bytes(unsharded_bytes), " on every rank; ",
      too_high ? concat("fsdp.min_num_params must be at most ", least_numel,
                        " to make each block a unit, but is ", min_num_params)
               : "leave their stages out of fsdp.exclude_stages and fsdp.leaf_stages, or name them in "
                 "fsdp.wrap_stages");
}

}  // namespace fsdp::shard
