#include "state/checkpoint/error_slices.h"

#include "base/util/error.h"
#include "shard/engine/engine.h"
#include "state/weights/weights.h"

namespace fsdp::checkpoint {

std::vector<shard::TensorSlice> error_slices(const shard::Engine& engine) {
  std::vector<shard::TensorSlice> slices;
  const comm::Communicator& world = engine.communicator();
  const auto add = [&](const shard::Unit& unit, const char* what, const at::Tensor& errors) {
    if (!errors.defined() || errors.numel() == 0) return;
    const int64_t n = errors.numel(), begin = world.rank() * n;
    slices.push_back(
        {concat(kErrorPrefix, unit.name(), "/", what), {world.world_size(), n}, {begin, begin + n}, errors});
  };
  for (const auto& unit : engine.units()) {
    if (!unit->storage().has_trainable_parameters()) continue;
    const shard::ProcessGroups& groups = unit->groups();
    const int64_t part = unit->storage().layout().gathered_numel() / groups.shard->world_size();
    if (groups.coded.reduce && unit->is_cut()) {
      if (const auto errors = groups.coded.reduce->errors_of_part(unit->name(), part)) {
        add(*unit, "reduce_scatter", errors->of_sums);
      }
    }
    if (!groups.coded.reduce_across || part == 0) continue;
    const auto errors = groups.slices ? groups.coded.reduce_across->errors_of_part(
                                            unit->name(), part / groups.slices->world_size())
                                      : groups.coded.reduce_across->errors_of_all_reduce(unit->name(), part);
    if (!errors) continue;
    add(*unit, groups.slices ? "between_slices" : "all_reduce", errors->of_sums);
    add(*unit, "all_reduce_result", errors->of_result);
  }
  return slices;
}

}  // namespace fsdp::checkpoint
