#include "shard/root_unit.h"

#include <algorithm>
#include <map>
#include <utility>

#include "util/error.h"
#include "util/text.h"

namespace fsdp::shard {
namespace {

/// As a share of the model's parameters: the norms of blocks whose other parts are units.
constexpr double kNegligible = 0.01;

/// "model.layers." and 3 of "model.layers.3.mlp.weight"; a negative number where no part is one.
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

int64_t numel_of(const ParameterSizes& parameter) {
  int64_t numel = 1;
  for (int64_t size : parameter.shape) numel *= size;
  return numel;
}

}  // namespace

BlocksInRoot blocks_in_root(const std::vector<UnitSizes>& units) {
  // Of each kind of block, what each of them has in the root.
  std::map<std::string, std::map<int64_t, int64_t>> kinds;
  BlocksInRoot found;
  int64_t all = 0;
  for (const UnitSizes& unit : units) {
    all += unit.numel;
    // Units of replicated and of fp32 parameters live as the root does, but are asked for by name.
    if (unit.name != "root" || !unit.is_cut()) continue;
    for (const ParameterSizes& parameter : unit.parameters) {
      const auto [kind, number] = block_of(parameter.name);
      if (number < 0) continue;
      kinds[kind][number] += numel_of(parameter);
      found.numel += numel_of(parameter);
      found.unsharded_bytes += numel_of(parameter) * unit.param_element();
    }
  }
  const std::map<int64_t, int64_t>* most = nullptr;
  std::string name;
  for (const auto& [kind, blocks] : kinds) {
    if (most != nullptr && blocks.size() <= most->size()) continue;
    most = &blocks;
    name = kind;
  }
  if (most == nullptr || most->size() < 2 || found.numel < kNegligible * static_cast<double>(all)) return {};
  found.blocks = static_cast<int64_t>(most->size());
  found.first = util::concat(name, most->begin()->first);
  found.last = util::concat(name, most->rbegin()->first);
  found.least_numel = most->begin()->second;
  for (const auto& [number, numel] : *most) found.least_numel = std::min(found.least_numel, numel);
  return found;
}

std::string BlocksInRoot::text(int64_t min_num_params) const {
  if (blocks == 0) return "";
  const bool too_high = least_numel < min_num_params;
  return util::concat(
      "the root unit holds ", util::with_commas(numel), " parameters of ", blocks, " blocks (", first,
      " ... ", last, "), which stay gathered from the begin of forward to the end of backward and take ",
      util::human_bytes(unsharded_bytes), " on every rank; ",
      too_high ? util::concat("expected fsdp.min_num_params of at most ", least_numel,
                              ", with which each block's are a unit of their own; found ", min_num_params)
               : "leave their stages out of fsdp.exclude_stages and fsdp.leaf_stages, or name them in "
                 "fsdp.wrap_stages");
}

}  // namespace fsdp::shard
