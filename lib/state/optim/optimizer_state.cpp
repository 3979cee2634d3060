#include "state/optim/optimizer_state.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <set>
#include <span>

#include "base/util/error.h"
#include "base/util/log.h"
#include "comm/api/communicator.h"
#include "shard/engine/engine.h"
#include "shard/engine/layout_views.h"
#include "shard/state/slice_loading.h"

namespace fsdp::optim {
namespace {

using shard::Engine;
using shard::Segment;
using shard::TensorSlice;

using StepCounts = std::map<std::string, int64_t>;  ///< step counts, keyed by the first names of parameters

std::string slice_name(const std::string& state, const std::string& parameter) {
  return state + "/" + parameter;
}

bool has_state(const Optimizer& optimizer, const StateKind& kind, const Segment& segment) {
  return segment.requires_grad && kind.covers(treatment_of(optimizer.options(), segment.name, segment.shape));
}

/// The segments of a unit, grouped by parameter.
using SegmentsOfUnit = std::vector<std::span<const Segment>>;

std::vector<SegmentsOfUnit> segments_by_unit(const Engine& engine) {
  std::vector<SegmentsOfUnit> units(engine.units().size());
  for (const auto& segments : engine.segments_by_parameter()) {
    units[segments.front().unit].push_back(segments);
  }
  return units;
}

/// The segments that hold a part of a state of this kind. A whole state has one.
std::span<const Segment> holders(const StateKind& kind, std::span<const Segment> segments) {
  return kind.is_whole() ? segments.first(1) : segments;
}

StateView view_of(const Optimizer& optimizer, const StateKind& kind, const Segment& segment) {
  if (kind.is_whole()) return {optimizer.state_of_tensor(kind.name, segment.unit, segment.name)};
  const int64_t begin = segment.shard_offset;
  return optimizer.state_of(kind.name, segment.unit, begin, begin + segment.numel());
}

TensorSlice place_of(const Optimizer& optimizer, const StateKind& kind, const Segment& segment) {
  const StateView view = view_of(optimizer, kind, segment);
  const std::string name = slice_name(kind.name, segment.name);
  if (kind.is_whole()) return shard::whole_slice(name, view.data);
  if (view.is_coded()) return {name, segment.shape, segment.range, view.codes.codes, view.codes};
  return {name, segment.shape, segment.range, view.data};
}

/// A state of the unit, shaped like its shard.
at::Tensor flat_state(const Engine& engine, const Optimizer& optimizer, const StateKind& kind, size_t unit,
                      const SegmentsOfUnit& parameters) {
  const at::Tensor state = optimizer.state(kind.name, unit);
  if (kind.is_flat()) return state;
  at::Tensor flat =
      // Elements without the state are 0.
      at::zeros_like(engine.units()[unit]->storage().shard(), state.options());
  for (const auto& segments : parameters) {
    for (const Segment& segment : segments) {
      if (!has_state(optimizer, kind, segment)) continue;
      flat.narrow(0, segment.shard_offset, segment.numel())
          .copy_(view_of(optimizer, kind, segment).numbers());
    }
  }
  return flat;
}

/// First names of tied parameters, keyed by their other names.
std::map<std::string, std::string> names_of_tied(const Engine& engine) {
  std::map<std::string, std::string> first;
  for (const auto& unit : engine.units()) {
    for (const shard::NamedParameter& parameter : unit->storage().parameters()) {
      for (const std::string& name : parameter.other_names) first[name] = parameter.name;
    }
  }
  return first;
}

[[noreturn]] void refuse(const char* what, const std::string& found) {
  fail(ErrorKind::kCheckpoint, what, ": expected the states of the optimizer; found ", found,
       "; pass the state of the same optimizer over the same model");
}

/// Whole states or ranges that a function loads.
struct GivenStates {
  const char* what;  ///< name of the function, for messages
  bool whole;
  int64_t step_count;
  StepCounts counts;
  std::vector<TensorSlice> slices;
};

GivenStates given_of(const char* what, const FullOptimizerState& state) {
  GivenStates given{.what = what, .whole = true, .step_count = state.step_count, .counts = {}, .slices = {}};
  for (const auto& [name, parameter] : state.parameters) {
    given.counts[name] = parameter.step_count;
    for (const auto& [kind, tensor] : parameter.states) {
      given.slices.push_back(shard::whole_slice(slice_name(kind, name), tensor));
    }
  }
  return given;
}

/// A state that has been compared with the optimizer and can be loaded.
struct Checked {
  shard::LoadPlaces places;
  shard::MatchedSlices matched;
  std::vector<int64_t> counts;  ///< the step count, then those of the units
};

/// The step count of a unit whose parameters have these step counts.
int64_t joint_count(const std::string& unit, const std::set<int64_t>& counts) {
  if (counts.size() > 1) {
    util::log_warning(concat("the parameters of unit ", unit, " have had ", *counts.begin(), " to ",
                             *counts.rbegin(), " optimizer steps; as one unit they continue with ",
                             *counts.rbegin()));
  }
  return *counts.rbegin();
}

Checked check(const Engine& engine, const Optimizer& optimizer, const GivenStates& given) {
  Checked checked;
  shard::LoadPlaces& places = checked.places;
  for_each_state(engine, optimizer, [&](const StateKind& kind, const Segment& segment, const StateView&) {
    TensorSlice place = place_of(optimizer, kind, segment);
    places.by_name.try_emplace(place.name, places.ranges.size());
    places.ranges.push_back(std::move(place));
  });
  StepCounts counts = given.counts;
  const auto tied = names_of_tied(engine);
  for (const auto& [name, first] : tied) {
    for (const StateKind& kind : optimizer.states()) {
      const auto place = places.by_name.find(slice_name(kind.name, first));
      if (place != places.by_name.end()) places.by_name[slice_name(kind.name, name)] = place->second;
    }
    if (auto count = counts.extract(name)) counts.emplace(first, count.mapped());
  }
  checked.matched = shard::match_slices(places, given.slices, given.whole);

  std::vector<std::set<int64_t>> of_units(engine.units().size());
  shard::Misfits& misfits = checked.matched.misfits;
  for (const auto& segments : engine.segments_by_parameter()) {
    const Segment& segment = segments.front();
    if (!segment.requires_grad) continue;
    const auto count = counts.extract(segment.name);
    if (!count) {
      misfits.missing.push_back(concat("the step count of ", segment.name));
    } else if (count.mapped() < 0 || count.mapped() > given.step_count) {
      misfits.misshapen.push_back(
          concat("the step count of ", segment.name, " (", count.mapped(), " of ", given.step_count, ")"));
    } else {
      of_units[segment.unit].insert(count.mapped());
    }
  }
  for (const auto& [name, count] : counts) misfits.unexpected.push_back(concat("the step count of ", name));
  if (given.step_count < 0) misfits.misshapen.push_back(concat("the step count ", given.step_count));
  if (misfits.any()) refuse(given.what, misfits.shown());
  checked.counts = {given.step_count};
  for (size_t unit = 0; unit < of_units.size(); ++unit) {
    const std::set<int64_t>& all = of_units[unit];
    checked.counts.push_back(all.empty() ? given.step_count : joint_count(engine.units()[unit]->name(), all));
  }
  return checked;
}

void set_counts(Optimizer& optimizer, const std::vector<int64_t>& counts) {
  optimizer.set_step_count(counts[0]);
  for (size_t unit = 0; unit + 1 < counts.size(); ++unit) {
    optimizer.set_parameter_step_count(unit, counts[unit + 1]);
  }
}

void load(const Engine& engine, Optimizer& optimizer, const GivenStates& given) {
  engine.require_rest(given.what);
  const Checked checked = check(engine, optimizer, given);
  shard::copy_slices(checked.places, checked.matched);
  set_counts(optimizer, checked.counts);
}

/// Whole states, keyed by the names of their places.
using WholeStates = std::map<std::string, at::Tensor>;

/// Sends one state of one unit from rank 0, which has `states`, to this rank's places.
void scatter(const Engine& engine, const Optimizer& optimizer, const StateKind& kind,
             const SegmentsOfUnit& parameters, const WholeStates& states) {
  comm::Communicator& ranks = engine.communicator();
  SegmentsOfUnit covered;
  int64_t numel = 0;
  for (const auto& segments : parameters) {
    if (!has_state(optimizer, kind, segments.front())) continue;
    covered.push_back(holders(kind, segments));
    numel += kind.numel(segments.front().shape);
  }
  if (numel == 0) return;
  const size_t index = covered.front().front().unit;
  const at::Tensor state = optimizer.state(kind.name, index);
  const at::Tensor all = at::empty({numel}, state.options().device(ranks.device()));
  const auto for_each_place = [&](const auto& use) {
    int64_t begin = 0;
    for (const auto& segments : covered) {
      const at::Tensor whole = all.narrow(0, begin, kind.numel(segments.front().shape));
      for (const Segment& segment : segments) use(place_of(optimizer, kind, segment), whole);
      begin += whole.numel();
    }
  };
  if (ranks.rank() == 0) {
    for_each_place([&](const TensorSlice& place, at::Tensor whole) {
      whole.copy_(states.at(place.name).reshape({-1}));
    });
  }
  const std::string& unit = engine.units()[index]->name();
  ranks.broadcast(all, 0, {.unit = unit, .pass = "optimizer"})->wait();
  for_each_place([&](const TensorSlice& place, const at::Tensor& whole) {
    const TensorSlice slice{place.name, place.shape, {0, whole.numel()}, whole};
    shard::copy_slices(place, {&slice});
  });
}

}  // namespace

void for_each_state(
    const Engine& engine, const Optimizer& optimizer,
    const std::function<void(const StateKind& kind, const Segment& segment, const StateView& view)>& visit) {
  const auto parameters = engine.segments_by_parameter();
  for (const StateKind& kind : optimizer.states()) {
    for (const auto& segments : parameters) {
      if (!has_state(optimizer, kind, segments.front())) continue;
      for (const Segment& segment : holders(kind, segments)) {
        visit(kind, segment, view_of(optimizer, kind, segment));
      }
    }
  }
}

FullOptimizerState full_optimizer_state(Engine& engine, const Optimizer& optimizer,
                                        const shard::FullStateDictOptions& options) {
  engine.require_rest("full_optimizer_state()");
  engine.reshard_frozen();
  at::NoGradGuard no_grad;
  const bool keeps = !options.rank0_only || engine.communicator().rank() == 0;
  FullOptimizerState full;
  if (keeps) full.step_count = optimizer.step_count();
  const auto segments = segments_by_unit(engine);
  for (size_t index = 0; index < segments.size(); ++index) {
    shard::Unit& unit = *engine.units()[index];
    const SegmentsOfUnit& parameters = segments[index];
    for (const StateKind& kind : optimizer.states()) {
      const auto has_it = [&](const auto& each) { return has_state(optimizer, kind, each.front()); };
      if (std::ranges::none_of(parameters, has_it)) continue;
      at::Tensor flat;
      if (!kind.is_whole()) flat = unit.gather_whole(flat_state(engine, optimizer, kind, index, parameters));
      for (size_t i = 0; keeps && i < parameters.size(); ++i) {
        const Segment& segment = parameters[i].front();
        if (!has_it(parameters[i])) continue;
        const at::Tensor whole = flat.defined() ? shard::whole_view(unit.storage().layout(), i, flat)
                                                : view_of(optimizer, kind, segment).data;
        full.parameters[segment.name].states[kind.name] =
            whole.to(options.to_host ? at::Device(at::kCPU) : whole.device(), whole.scalar_type(),
                     /*non_blocking=*/false, /*copy=*/true);
      }
    }
    for (const auto& each : parameters) {
      if (!keeps || !each.front().requires_grad) continue;
      full.parameters[each.front().name].step_count = optimizer.parameter_step_count(index);
    }
  }
  return full;
}

void load_full_optimizer_state(Engine& engine, Optimizer& optimizer, const FullOptimizerState& state) {
  load(engine, optimizer, given_of("load_full_optimizer_state()", state));
}

void scatter_full_optimizer_state(Engine& engine, Optimizer& optimizer, const FullOptimizerState& state) {
  constexpr const char* kWhat = "scatter_full_optimizer_state()";
  comm::Communicator& ranks = engine.communicator();
  at::NoGradGuard no_grad;
  WholeStates states;  // filled on rank 0 only
  std::vector<int64_t> counts(engine.units().size() + 1);
  comm::agree(ranks, kWhat, [&] {
    engine.require_rest(kWhat);
    if (ranks.rank() != 0) return;
    const GivenStates given = given_of(kWhat, state);
    const Checked checked = check(engine, optimizer, given);
    counts = checked.counts;
    for (size_t i = 0; i < checked.places.ranges.size(); ++i) {
      states[checked.places.ranges[i].name] = checked.matched.slices[i].back()->data;
    }
  });
  const at::Tensor sent = at::from_blob(counts.data(), {static_cast<int64_t>(counts.size())}, at::kLong);
  ranks.broadcast(sent, 0, {.unit = "step counts", .pass = "optimizer"})->synchronize();
  for (const auto& of_unit : segments_by_unit(engine)) {
    for (const StateKind& kind : optimizer.states()) scatter(engine, optimizer, kind, of_unit, states);
  }
  set_counts(optimizer, counts);
}

ShardedOptimizerState sharded_optimizer_state(const Engine& engine, const Optimizer& optimizer) {
  ShardedOptimizerState state{
      .step_count = optimizer.step_count(), .parameter_step_counts = {}, .slices = {}};
  for (const Segment& segment : engine.segments()) {
    if (!segment.requires_grad) continue;
    state.parameter_step_counts[segment.name] = optimizer.parameter_step_count(segment.unit);
  }
  for_each_state(engine, optimizer,
                 [&](const StateKind& kind, const Segment& segment, const StateView& view) {
                   TensorSlice& slice = state.slices.emplace_back(place_of(optimizer, kind, segment));
                   slice.data = view.numbers();
                   slice.coded.reset();
                 });
  return state;
}

void load_sharded_optimizer_state(Engine& engine, Optimizer& optimizer, const ShardedOptimizerState& state) {
  load(engine, optimizer,
       {.what = "load_sharded_optimizer_state()",
        .whole = false,
        .step_count = state.step_count,
        .counts = state.parameter_step_counts,
        .slices = state.slices});
}

}  // namespace fsdp::optim
