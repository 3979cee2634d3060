#include "state/outer/outer_slices.h"

#include <algorithm>
#include <set>
#include <string_view>
#include <utility>

#include "base/util/error.h"
#include "shard/engine/engine.h"
#include "state/weights/weights.h"

namespace fsdp::optim {
namespace {

using checkpoint::is_of_local_steps;
using checkpoint::SlicePurpose;
using shard::TensorSlice;

constexpr const char* kModel = "model/";
const std::string kOptimizer = checkpoint::kOptimizerPrefix;
const std::string kBuffers = kOptimizer + "outer_momentum/", kDeltas = kOptimizer + "outer_delta/";
constexpr const char* kLocalWeights = "local_weights";
constexpr const char* kReplica = ".replica";

/// "exp_avg" -> "exp_avg.replica1".
std::string of_replica(const std::string& state, int replica) {
  return replica == 0 ? state : concat(state, kReplica, replica);
}

/// "optimizer/exp_avg.replica1/model.norm.weight" -> "exp_avg.replica1"; empty for other tensors.
std::string_view state_in(std::string_view name) {
  if (!name.starts_with(kOptimizer)) return {};
  name.remove_prefix(kOptimizer.size());
  return name.substr(0, name.find('/'));
}

int replica_of(const OuterOptimizer& outer) { return outer.replicas().rank(); }

/// The same name with the state of another replica.
std::string renamed(const std::string& name, int replica) {
  const std::string_view state = state_in(name);
  if (state.empty()) return name;
  return kOptimizer + of_replica(std::string(state), replica) + name.substr(kOptimizer.size() + state.size());
}

/// The part of the segment in a tensor that is flat like its unit's shard.
StateView part_of(const at::Tensor& flat, const shard::Segment& segment) {
  return {.data = flat.narrow(0, segment.shard_offset, segment.numel())};
}

std::vector<TensorSlice> slices_of(OuterOptimizer& outer, const std::vector<OuterOptimizer::UnitState>& units,
                                   SlicePurpose purpose, int replica, bool with_deltas = true) {
  shard::Engine& engine = outer.engine();
  const bool saves = purpose == SlicePurpose::kSave;
  const checkpoint::Copies all{.number = replica, .count = outer.replicas().world_size()};
  std::set<std::string> trained;
  for (const shard::Segment& segment : engine.segments()) {
    if (segment.requires_grad) trained.insert(kModel + segment.name);
  }
  std::vector<TensorSlice> slices = checkpoint::state_slices(engine, outer.inner(), purpose);
  // Replica 0 saves frozen weights and buffers.
  std::erase_if(slices, [&](const TensorSlice& slice) {
    return trained.contains(slice.name) || (saves && replica > 0 && state_in(slice.name).empty());
  });
  for (TensorSlice& slice : slices) slice.name = renamed(slice.name, replica);
  for (const shard::Segment& segment : engine.segments()) {
    if (!segment.requires_grad) continue;
    const OuterOptimizer::UnitState& unit = units[segment.unit];
    const auto add = [&](const std::string& prefix, const at::Tensor& flat,
                         const checkpoint::Copies& copies) {
      if (flat.defined()) {
        slices.push_back(slice_of(engine, segment, prefix, part_of(flat, segment), purpose, copies));
      }
    };
    add(kModel, unit.outer, all);
    add(kBuffers, unit.buffer, all);
    if (with_deltas) add(kDeltas, unit.delta, all);
    if (saves && !outer.has_local_weights()) continue;
    add(kOptimizer + of_replica(kLocalWeights, replica) + "/", outer.inner().parameters()[segment.unit].value,
        {});
  }
  return slices;
}

}  // namespace

std::vector<TensorSlice> outer_slices_to_save(OuterOptimizer& outer) {
  return slices_of(outer, outer.settled_state(), SlicePurpose::kSave, replica_of(outer));
}

std::vector<TensorSlice> outer_slices_in_memory(OuterOptimizer& outer) {
  return slices_of(outer, outer.state_in_memory(), SlicePurpose::kLoad, /*replica=*/0, /*with_deltas=*/false);
}

OuterSlices outer_slices_to_load(OuterOptimizer& outer, int64_t step) {
  const auto& units = outer.state_to_load(step);
  OuterSlices places{.slices = slices_of(outer, units, SlicePurpose::kLoad, replica_of(outer)),
                     .has_delta = {}};
  for (const OuterOptimizer::UnitState& unit : units) places.has_delta.push_back(unit.delta.defined());
  return places;
}

OuterSlices outer_slices_to_load(OuterOptimizer& outer, checkpoint::Manifest& manifest) {
  OuterSlices places = outer_slices_to_load(outer, manifest.step);
  const int replica = replica_of(outer);
  const auto has = [&](const std::string& name) { return manifest.tensors.contains(name); };
  for (TensorSlice& slice : places.slices) {
    if (has(slice.name) || state_in(slice.name).empty() || !is_of_local_steps(slice.name)) continue;
    // A replica that is new has the weights of all.
    if (state_in(slice.name).starts_with(kLocalWeights)) continue;
    const std::string suffix = concat(kReplica, replica);
    const size_t at = slice.name.find(suffix + "/");
    if (at != std::string::npos) slice.name.erase(at, suffix.size());
  }
  const std::vector<shard::Segment>& segments = outer.engine().segments();
  const auto is_missing = [&](const std::string& prefix, const shard::Segment& segment) {
    return segment.requires_grad && !has(prefix + segment.name);
  };
  for (const shard::Segment& segment : segments) {
    if (is_missing(kOptimizer + of_replica(kLocalWeights, replica) + "/", segment))
      places.has_local_weights = false;
    if (is_missing(kDeltas, segment)) places.has_delta[segment.unit] = false;
  }
  std::set<std::string> wanted;
  std::erase_if(places.slices, [&](const TensorSlice& slice) {
    const std::string_view state = state_in(slice.name);
    const bool is_missing =
        (state.starts_with(kLocalWeights) && !places.has_local_weights) ||
        ((slice.name.starts_with(kBuffers) || slice.name.starts_with(kDeltas)) && !has(slice.name));
    if (!is_missing) wanted.insert(slice.name);
    return is_missing;
  });
  const bool is_own_replica = std::ranges::any_of(wanted, [&](const std::string& name) {
    return replica > 0 && state_in(name).find(kReplica) != std::string_view::npos;
  });
  std::erase_if(manifest.tensors, [&](const auto& item) {
    if (wanted.contains(item.first)) return false;
    // Other replicas' states, and replica 0's beside this replica's own.
    if (is_of_local_steps(item.first)) return true;
    return is_own_replica && !state_in(item.first).empty() && has(renamed(item.first, replica));
  });
  return places;
}

bool remove_outer_tensors(checkpoint::Manifest& manifest) {
  return std::erase_if(manifest.tensors, [](const auto& item) { return is_of_local_steps(item.first); }) > 0;
}

}  // namespace fsdp::optim
