#include "shard/state/state_dict.h"

#include <ATen/core/grad_mode.h>

#include <map>

#include "base/util/error.h"
#include "shard/engine/layout_views.h"
#include "shard/engine/model_parts.h"
#include "shard/engine/rank_checks.h"
#include "shard/state/slice_loading.h"

namespace fsdp::shard {
namespace {

LoadPlaces load_places(const Engine& engine) {
  LoadPlaces places{.ranges = sharded_state_dict(engine), .by_name = {}};
  size_t place = 0;
  for (const auto& segments : engine.segments_by_parameter()) {
    const Segment& first = segments.front();
    const NamedParameter& parameter = engine.units()[first.unit]->storage().parameters().at(first.parameter);
    places.by_name[parameter.name] = place;
    for (const std::string& name : parameter.other_names) places.by_name[name] = place;
    place += segments.size();
  }
  for (const NamedTensor& buffer : engine.buffers()) places.by_name[buffer.name] = place++;
  return places;
}

struct LoadRequest {
  const char* what;  ///< the function, for messages
  bool strict;
  bool whole;  ///< slices are whole parameters, required even where this rank's range is empty
};

void load_slices(Engine& engine, const std::vector<TensorSlice>& slices, const LoadRequest& request) {
  engine.require_rest(request.what);
  const LoadPlaces places = load_places(engine);
  const MatchedSlices matched = match_slices(places, slices, request.whole);
  Misfits misfits = matched.misfits;
  if (!request.strict) misfits.missing.clear(), misfits.unexpected.clear();
  if (misfits.any()) {
    fail(ErrorKind::kCheckpoint, request.what, ": expected the parameters and buffers of the model; found ",
         misfits.shown(), "; pass a state dict of the same model",
         request.strict && misfits.misshapen.empty() ? ", or strict = false for what there is" : "");
  }
  copy_slices(places, matched);
  engine.note_changed_weights();
}

}  // namespace

FullStateDict full_state_dict(Engine& engine, const FullStateDictOptions& options) {
  engine.require_rest("full_state_dict()");
  engine.reshard_frozen();
  at::NoGradGuard no_grad;
  bool keeps = !options.rank0_only || engine.communicator().rank() == 0;
  FullStateDict state;
  const ModelParts parts(engine.model_group());
  for (const auto& unit : engine.units()) {
    at::Tensor whole = unit->gather_weights();
    if (!keeps && engine.mesh().model == 1) continue;
    at::Device device = options.to_host ? at::Device(at::kCPU) : whole.device();
    for (size_t i = 0; i < unit->storage().parameters().size(); ++i) {
      const NamedParameter& parameter = unit->storage().parameters()[i];
      const at::Tensor own = whole_view(unit->storage().layout(), i, whole);
      const at::Tensor of_all = parameter.part ? parts.joined(parameter, own) : own;
      if (!keeps) continue;
      const at::Tensor tensor = of_all.to(device, /*non_blocking=*/false, /*copy=*/of_all.is_same(own));
      state.push_back({parameter.name, tensor});
      for (const std::string& name : parameter.other_names) state.push_back({name, tensor});
    }
  }
  warn_of_unequal_buffers(engine, "full_state_dict()");
  for (const NamedTensor& buffer : engine.buffers()) {
    if (!keeps) break;
    const at::Device device = options.to_host ? at::Device(at::kCPU) : buffer.tensor.device();
    state.push_back({buffer.name, buffer.tensor.to(device, /*non_blocking=*/false, /*copy=*/true)});
  }
  return state;
}

ShardedStateDict sharded_state_dict(const Engine& engine) {
  ShardedStateDict state;
  for (const Segment& segment : engine.segments()) {
    const at::Tensor& shard = engine.units()[segment.unit]->storage().shard();
    state.push_back(
        {segment.name, segment.shape, segment.range, shard.narrow(0, segment.shard_offset, segment.numel())});
  }
  for (const auto& [name, tensor] : engine.buffers()) {
    state.push_back({name, tensor.sizes().vec(), {0, tensor.numel()}, tensor.detach().view({-1})});
  }
  return state;
}

LocalStateDict local_state_dict(const Engine& engine) {
  LocalStateDict state;
  for (const auto& unit : engine.units()) state.push_back({unit->name(), unit->storage().shard()});
  state.insert(state.end(), engine.buffers().begin(), engine.buffers().end());
  return state;
}

void load_full_state_dict(Engine& engine, const FullStateDict& state, bool strict) {
  std::vector<TensorSlice> slices;
  for (const auto& [name, tensor] : state) slices.push_back(whole_slice(name, tensor));
  load_slices(engine, slices, {"load_full_state_dict()", strict, /*whole=*/true});
}

void load_sharded_state_dict(Engine& engine, const ShardedStateDict& state, bool strict) {
  load_slices(engine, state, {"load_sharded_state_dict()", strict, /*whole=*/false});
}

void load_local_state_dict(Engine& engine, const LocalStateDict& state) {
  constexpr const char* kWhat = "load_local_state_dict()";
  constexpr const char* kRemedy =
      "; local state dicts fit the same model, wrapping and world size only: use load_full_state_dict() or "
      "load_sharded_state_dict()";
  engine.require_rest(kWhat);
  std::map<std::string, at::Tensor> given;
  for (const auto& [name, tensor] : state) {
    if (given.insert({name, tensor}).second) continue;
    fail(ErrorKind::kCheckpoint, kWhat, ": expected one shard of unit ", name, "; found several", kRemedy);
  }
  std::vector<std::pair<at::Tensor, at::Tensor>> copies;  // destination, source
  for (const auto& [name, destination] : local_state_dict(engine)) {
    const auto found = given.find(name);
    const std::string fault = found == given.end()
                                  ? "none"
                                  : fault_of(found->second, destination.numel(), destination.scalar_type());
    if (!fault.empty()) {
      fail(ErrorKind::kCheckpoint, kWhat, ": expected a shard of ", destination.numel(), " elements of unit ",
           name, "; found ", fault, kRemedy);
    }
    copies.emplace_back(destination, found->second.reshape(destination.sizes()));
    given.erase(found);
  }
  if (!given.empty()) {
    fail(ErrorKind::kCheckpoint, kWhat, ": expected shards of units that the model has; found unit ",
         given.begin()->first, kRemedy);
  }

  at::NoGradGuard no_grad;
  for (auto& [destination, source] : copies) destination.copy_(source);
  engine.note_changed_weights();
}

}  // namespace fsdp::shard
