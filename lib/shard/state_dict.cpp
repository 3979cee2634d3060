#include "shard/state_dict.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <map>

#include "shard/layout_views.h"
#include "shard/rank_checks.h"
#include "util/column_range.h"
#include "util/error.h"
#include "util/text.h"

namespace fsdp::shard {
namespace {

using util::ErrorKind;

/// Indices into sharded_state_dict(engine); tied parameters have several names.
std::map<std::string, size_t> places_by_name(const Engine& engine) {
  std::map<std::string, size_t> by_name;
  size_t place = 0;
  for (const auto& unit : engine.units()) {
    for (const NamedParameter& parameter : unit->storage().parameters()) {
      by_name[parameter.name] = place;
      for (const std::string& name : parameter.other_names) by_name[name] = place;
      ++place;
    }
  }
  for (const NamedTensor& buffer : engine.buffers()) by_name[buffer.name] = place++;
  return by_name;
}

/// All errors of a load, to be reported together.
struct Misfits {
  std::vector<std::string> missing, unexpected, misshapen;

  void throw_if_any(const char* what, bool strict) const {
    std::vector<std::string> found;
    auto add = [&found](const std::vector<std::string>& names, const char* how) {
      if (!names.empty()) found.push_back(util::concat(how, " ", util::join(names, ", ")));
    };
    if (strict) {
      add(missing, "missing");
      add(unexpected, "unexpected");
    }
    add(misshapen, "misshapen");
    if (found.empty()) return;
    util::fail(ErrorKind::kCheckpoint, what, ": expected the parameters and buffers of the model; found ",
               util::join(found, "; "), "; pass a state dict of the same model",
               strict && misshapen.empty() ? ", or strict = false for what there is" : "");
  }
};

/// Empty if the tensor has `numel` elements of a floating type, or of the type that a buffer has.
std::string fault_of(const at::Tensor& tensor, int64_t numel, at::ScalarType expected = at::kFloat) {
  if (!tensor.defined()) return "no tensor";
  if (tensor.scalar_type() != expected && !(tensor.is_floating_point() && c10::isFloatingType(expected))) {
    return c10::toString(tensor.scalar_type());
  }
  if (tensor.numel() != numel) return util::concat(tensor.numel(), " elements instead of ", numel);
  return "";
}

bool covers(const std::vector<const TensorSlice*>& slices, const TensorSlice& place) {
  std::vector<std::pair<int64_t, int64_t>> found;  // elements of the place
  const int64_t numel = c10::multiply_integers(place.shape);
  for (const TensorSlice* slice : slices) {
    util::for_each_overlap(numel, place.range, slice->range, [&found](const util::Overlap& overlap) {
      found.emplace_back(overlap.in_a, overlap.in_a + overlap.count);
    });
  }
  std::sort(found.begin(), found.end());
  int64_t covered = 0;
  for (const auto& [begin, end] : found) {
    if (begin <= covered) covered = std::max(covered, end);
  }
  return covered >= place.numel();
}

/// Copies the elements that the place and the slice have in common.
void copy_slice(const TensorSlice& place, const TensorSlice& slice) {
  const at::Tensor from = slice.data.reshape({-1});
  const int64_t numel = c10::multiply_integers(place.shape);
  util::for_each_overlap(numel, place.range, slice.range, [&](const util::Overlap& overlap) {
    place.data.narrow(0, overlap.in_a, overlap.count).copy_(from.narrow(0, overlap.in_b, overlap.count));
  });
}

struct LoadRequest {
  const char* what;  ///< the function, for messages
  bool strict;
  bool whole;  ///< slices are whole parameters, required even where this rank's range is empty
};

void load_slices(const Engine& engine, const std::vector<TensorSlice>& slices, const LoadRequest& request) {
  engine.require_rest(request.what);
  Misfits misfits;
  const ShardedStateDict places = sharded_state_dict(engine);
  auto by_name = places_by_name(engine);
  std::vector<std::vector<const TensorSlice*>> given(places.size());
  std::vector<bool> is_misshapen(given.size(), false);
  for (const TensorSlice& slice : slices) {
    auto found = by_name.find(slice.name);
    if (found == by_name.end()) {
      misfits.unexpected.push_back(slice.name);
      continue;
    }
    const TensorSlice& place = places[found->second];
    std::string fault = fault_of(slice.data, slice.numel(), place.data.scalar_type());
    if (fault.empty() && slice.shape != place.shape) {
      fault = util::concat(at::IntArrayRef(slice.shape), " instead of ", at::IntArrayRef(place.shape));
    }
    given[found->second].push_back(&slice);
    if (fault.empty()) continue;
    is_misshapen[found->second] = true;
    misfits.misshapen.push_back(util::concat(slice.name, " (", fault, ")"));
  }
  for (size_t i = 0; i < given.size(); ++i) {
    bool is_there = is_misshapen[i] || (covers(given[i], places[i]) && !(request.whole && given[i].empty()));
    if (!is_there) misfits.missing.push_back(places[i].name);
  }
  misfits.throw_if_any(request.what, request.strict);

  at::NoGradGuard no_grad;
  for (size_t i = 0; i < given.size(); ++i) {
    for (const TensorSlice* slice : given[i]) copy_slice(places[i], *slice);
  }
}

}  // namespace

FullStateDict full_state_dict(Engine& engine, const FullStateDictOptions& options) {
  engine.require_rest("full_state_dict()");
  at::NoGradGuard no_grad;
  bool keeps = !options.rank0_only || engine.communicator().rank() == 0;
  FullStateDict state;
  for (const auto& unit : engine.units()) {
    at::Tensor whole = unit->gather_weights();
    if (!keeps) continue;
    at::Device device = options.to_host ? at::Device(at::kCPU) : whole.device();
    for (size_t i = 0; i < unit->storage().parameters().size(); ++i) {
      const NamedParameter& parameter = unit->storage().parameters()[i];
      at::Tensor tensor =
          whole_view(unit->storage().layout(), i, whole).to(device, /*non_blocking=*/false, /*copy=*/true);
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
  for (const auto& [name, tensor] : state) {
    auto shape = tensor.defined() ? tensor.sizes().vec() : std::vector<int64_t>{};
    slices.push_back({name, std::move(shape), {0, tensor.defined() ? tensor.numel() : 0}, tensor});
  }
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
    util::fail(ErrorKind::kCheckpoint, kWhat, ": expected one shard of unit ", name, "; found several",
               kRemedy);
  }
  std::vector<std::pair<at::Tensor, at::Tensor>> copies;  // destination, source
  for (const auto& [name, destination] : local_state_dict(engine)) {
    const auto found = given.find(name);
    const std::string fault = found == given.end()
                                  ? "none"
                                  : fault_of(found->second, destination.numel(), destination.scalar_type());
    if (!fault.empty()) {
      util::fail(ErrorKind::kCheckpoint, kWhat, ": expected a shard of ", destination.numel(),
                 " elements of unit ", name, "; found ", fault, kRemedy);
    }
    copies.emplace_back(destination, found->second.reshape(destination.sizes()));
    given.erase(found);
  }
  if (!given.empty()) {
    util::fail(ErrorKind::kCheckpoint, kWhat, ": expected shards of units that the model has; found unit ",
               given.begin()->first, kRemedy);
  }

  at::NoGradGuard no_grad;
  for (auto& [destination, source] : copies) destination.copy_(source);
}

}  // namespace fsdp::shard
