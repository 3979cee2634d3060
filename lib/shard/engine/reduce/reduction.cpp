#include "shard/engine/reduce/reduction.h"

#include "shard/engine/reduce/host_reduction.h"
#include "shard/engine/reduce/replica_reduction.h"
#include "shard/engine/reduce/sample_reduction.h"
#include "shard/engine/reduce/slice_reduction.h"

namespace fsdp::shard {
namespace {

std::unique_ptr<GroupReduction> make_reduction_on_device(Unit& unit) {
  if (unit.groups().slices) return std::make_unique<SliceReduction>(unit);
  if (unit.groups().replicate) return std::make_unique<ReplicaReduction>(unit);
  return std::make_unique<GroupReduction>(unit);
}

}  // namespace

std::unique_ptr<Reduction> make_reduction(Unit& unit) {
  if (unit.options().storage.sums_by_sample) return std::make_unique<SampleReduction>(unit);
  std::unique_ptr<GroupReduction> on_device = make_reduction_on_device(unit);
  if (!unit.storage().gradient_is_offloaded()) return on_device;
  return std::make_unique<HostReduction>(unit, std::move(on_device));
}

}  // namespace fsdp::shard
