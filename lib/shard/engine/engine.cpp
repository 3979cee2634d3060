#include "shard/engine/engine.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "base/tensor/storage.h"
#include "base/util/error.h"
#include "base/util/log.h"
#include "model/kernels/below_autograd.h"
#include "shard/engine/autograd_hooks.h"
#include "shard/engine/layout_views.h"
#include "shard/engine/rank_checks.h"

namespace fsdp::shard {
namespace {

/// Makes the pool. Memory of the world's communicator serves all its groups. Where nothing is cut, this rank
/// alone uses it.
std::shared_ptr<BufferPool> pool_for(const std::vector<UnitPlan>& plans, const ProcessGroups& groups) {
  const bool all_whole =
      std::ranges::all_of(plans, [](const UnitPlan& plan) { return shards_nothing(plan.options.strategy); });
  const bool is_own = all_whole && groups.world->device().is_cpu();
  return std::make_shared<BufferPool>(is_own ? std::make_shared<comm::SingleCommunicator>() : groups.world);
}

std::shared_ptr<OffloadStreams> offload_for(const std::vector<UnitPlan>& plans, at::Device device) {
  const bool any = !device.is_cpu() && std::ranges::any_of(plans, [](const UnitPlan& plan) {
    return plan.options.storage.cpu_offload;
  });
  return any ? std::make_shared<OffloadStreams>(device) : nullptr;
}

/// Calls use(unit) and adds the unit's name to the message of an exception.
void use_named(const std::function<void(size_t)>& use, size_t unit, const std::string& name) {
  try {
    use(unit);
  } catch (const util::Error& error) {
    throw util::Error(error.kind(), concat("gradient of unit ", name, ": ", error.what()));
  } catch (const std::exception& error) {
    fail(ErrorKind::kUnexpected, "gradient of unit ", name, ": ", error.what());
  }
}

std::unique_ptr<util::Stream> stream_of(at::Device device) {
  if (device.is_cpu()) return nullptr;
  return std::make_unique<util::Stream>(util::StreamOptions{.name = "fsdp released", .device = device});
}

}  // namespace

Engine::Engine(const ShardOptions& options, const comm::Mesh& mesh, const std::vector<UnitPlan>& plans,
               const std::shared_ptr<comm::Trace>& trace, const Materialize& materialize)
    : options_(options),
      mesh_(mesh),
      groups_(process_groups(mesh, options.strategy, options.hybrid_optimizer)),
      pool_(pool_for(plans, groups_)),
      offload_(offload_for(plans, groups_.world->device())),
      units_(make_units(mesh, plans, {pool_, trace, materialize, offload_})),
      differentiable_input_(units_.size(), true),
      differentiable_output_(units_.size(), true),
      schedule_(options, scheduled(plans, units_), *this,
                /*host_runs_ahead=*/!groups_.world->device().is_cpu()),
      released_(stream_of(groups_.world->device())),
      use_is_due_(units_.size(), false) {
  for (size_t i = 0; i < plans.size(); ++i) {
    const bool shares_hook = i != 0 && plans[i].module == plans.front().module;
    modules_.push_back(shares_hook ? nullptr : plans[i].module);
  }
}

std::vector<std::unique_ptr<Unit>> Engine::make_units(const comm::Mesh& mesh,
                                                      const std::vector<UnitPlan>& plans,
                                                      const UnitParts& parts) {
  GroupsOfUnits groups_of_units(mesh, options_.reduce_scatter_group);
  std::vector<std::unique_ptr<Unit>> units;
  for (const UnitPlan& plan : plans) {
    const ProcessGroups groups = groups_of_units.of(plan.options);
    const Unit& unit = *units.emplace_back(std::make_unique<Unit>(plan, groups, parts));
    const UnitLayout& layout = unit.storage().layout();
    for (size_t i = 0; i < layout.parameters().size(); ++i) {
      const ParameterPlace& place = layout.parameters()[i];
      const LocalRange local = layout.local_range(i, groups.place().rank);
      int64_t offset = local.shard_offset;
      for (const util::Rectangle& range : plan.parameters[i].parts_of(local.columns)) {
        segments_.push_back({.name = place.name,
                             .shape = plan.parameters[i].whole_shape(),
                             .requires_grad = plan.parameters[i].tensor.requires_grad(),
                             .unit = units.size() - 1,
                             .parameter = i,
                             .range = range,
                             .shard_offset = offset});
        offset += range.numel();
      }
    }
  }
  return units;
}

std::vector<std::span<const Segment>> Engine::segments_by_parameter() const {
  std::vector<std::span<const Segment>> parameters;
  for (size_t begin = 0, end = 0; begin < segments_.size(); begin = end) {
    const Segment& first = segments_[begin];
    const auto is_of_first = [&](const Segment& segment) {
      return segment.unit == first.unit && segment.parameter == first.parameter;
    };
    while (end < segments_.size() && is_of_first(segments_[end])) ++end;
    parameters.emplace_back(&first, end - begin);
  }
  return parameters;
}

std::vector<ScheduledUnit> Engine::scheduled(const std::vector<UnitPlan>& plans,
                                             const std::vector<std::unique_ptr<Unit>>& units) {
  std::vector<ScheduledUnit> all;
  for (size_t i = 0; i < plans.size(); ++i) {
    const UnitStorage& storage = units[i]->storage();
    all.push_back({.name = plans[i].name,
                   .is_root = plans[i].module == plans.front().module,
                   .is_cut = units[i]->is_cut(),
                   .is_reduced_twice = units[i]->is_cut() && units[i]->groups().across() != nullptr,
                   .adds_before_all_reduce =
                       adds_before_all_reduce(units[i]->groups().sizes(), plans[i].options.storage),
                   .has_slices = storage.has_slices(),
                   .stays_after_forward = plans[i].options.stays_after_forward,
                   .stays_in_step = plans[i].options.stays_in_step && !storage.has_trainable_parameters(),
                   .has_trainable_parameters = storage.has_trainable_parameters(),
                   .gradient_moves = storage.gradient_is_offloaded()});
  }
  return all;
}

// ---- a pass

void Engine::forward_begins(size_t unit, bool records) {
  require_no_full_parameters("forward");
  if (unit == 0 && records && is_in_backward_pass()) report_recomputation_of_root();
  if (released_ && (unit == 0 || !schedule_.in_pass())) released_->run([] {});
  if (std::exchange(weights_changed_, false)) schedule_.weights_changed();
  schedule_.forward_begins(unit, records);
  execute_commands();
}

void Engine::forward_ends(size_t unit, bool backward_follows) {
  schedule_.forward_ends(unit, backward_follows);
  execute_commands();
}

void Engine::report_recomputation_of_root() {
  if (std::exchange(reported_recomputation_, true) || groups_.world->rank() != 0) return;
  util::log_warning(
      "fully_shard(): expected recomputation of the whole model inside of the hook that shards it; found it "
      "outside, where each step gathers all units three times instead of two; attach it after fully_shard(), "
      "or to the model's stages instead");
}

void Engine::backward_begins(size_t unit) {
  require_no_full_parameters("backward");
  if (!schedule_.in_backward()) {
    when_whole_backward_ends([keep = shared_from_this()] { keep->whole_backward_ends(); });
  }
  schedule_.backward_begins(unit);
  execute_commands();
}

void Engine::backward_ends(size_t unit) {
  schedule_.backward_ends(unit);
  execute_commands();
}

void Engine::whole_backward_ends() {
  schedule_.whole_backward_ends();
  execute_commands();
}

void Engine::execute_commands() {
  FSDP_CHECK(executing_.empty(), "a pass has failed; call Engine::reset() before the next one");
  const kernels::BelowAutograd below;
  executing_.swap(commands_);
  for (const Command& command : executing_) execute(command);
  executing_.clear();
}

void Engine::execute(const Command& command) {
  using Action = Command::Action;
  Unit& unit = *units_[command.unit];
  switch (command.kind) {
    case Action::kGatherSlices:
      return unit.start_slice_gather();
    case Action::kWaitForSlices:
      return unit.finish_slice_gather();
    case Action::kGather:
      return gather(unit, command.pass);
    case Action::kWaitForGather:
      unit.finish_gather(command.pass == Pass::kForward ? "forward" : "backward");
      // A gather of another group, in a stream of its own, may take the memory of the communication buffer.
      if (released_ && !unit.storage().layout().gathers_in_place()) released_->run([] {});
      return;
    case Action::kReshard:
      unit.reshard();
      if (released_) released_->run([] {});
      return;
    case Action::kAttachGradients:
      return unit.attach_gradients();
    case Action::kReduce:
      return unit.reduction().start(Reduction::Reach::kAll);
    case Action::kReduceInSlice:
      return unit.reduction().start(Reduction::Reach::kSlice);
    case Action::kWaitForSending:
      return unit.reduction().finish_sending();
    case Action::kWaitForMove:
      return unit.reduction().finish_moving();
    case Action::kWaitForReduction:
      unit.reduction().finish();
      return use_gradient_if_due(command.unit);
    case Action::kHandOver:
      return hand_over_gradient(command.unit);
  }
}

void Engine::gather(Unit& unit, Pass pass) {
  if (pass == Pass::kBackward) return unit.start_gather("backward");
  if (!released_) return unit.start_gather("forward");
  released_->run_apart([&unit] { unit.start_gather("forward"); }).wait();
}

std::string Engine::place_name(size_t unit) const {
  return unit < units_.size() ? "unit " + units_[unit]->name() : "the end of forward";
}

void Engine::compare_order(size_t unit) {
  execute_commands();
  if (groups_.world->world_size() == 1) return;
  const auto difference = check_across_ranks(*groups_.world, unit);
  if (!difference) return;
  throw comm::AgreedError(
      ErrorKind::kUsage,
      concat("fsdp.forward_prefetch = \"explicit\": expected the same order of units on all ranks; found ",
             place_name(difference->first_ranks), " on rank 0 and ", place_name(difference->theirs),
             " on rank ", difference->rank, " at place ", schedule_.position() + 1,
             " of the first forward; run the same stages on all ranks"));
}

void Engine::report_changed_order(size_t unit) {
  if (groups_.world->rank() != 0) return;
  util::log_warning(
      concat("fsdp.forward_prefetch = \"explicit\": the order of units has changed: ", place_name(unit),
             " comes where ", place_name(schedule_.expected_unit().value_or(units_.size())),
             " came in the previous forward; where forwards differ, units are gathered when they are used"));
}

void Engine::hand_over_gradient(size_t index) {
  if (!gradient_use_) return;
  Unit& unit = *units_[index];
  if (!groups_.world->device().is_cpu()) {
    return unit.reduction().use_gradient(
        [use = gradient_use_, index, name = unit.name()] { use_named(use, index, name); });
  }
  use_is_due_[index] = true;
  if (!unit.is_reduced_over_ranks()) unit.reduction().finish();
  if (!unit.reduction().is_under_way()) use_gradient_if_due(index);
}

void Engine::use_gradient_if_due(size_t index) {
  if (!use_is_due_[index]) return;
  use_is_due_[index] = false;
  use_named(gradient_use_, index, units_[index]->name());
}

// ---- between steps

void Engine::set_gradient_use(std::function<void(size_t unit)> use) {
  const auto moves = [](const std::unique_ptr<Unit>& unit) {
    return unit->options().storage.move_grads_to_cpu || unit->storage().layout().numel() == 0;
  };
  const bool any_moves =
      std::ranges::any_of(units_, [](const auto& unit) { return unit->options().storage.move_grads_to_cpu; });
  // Calls would otherwise come from two threads.
  const auto stays = std::ranges::find_if_not(units_, moves);
  if (use && !groups_.world->device().is_cpu() && any_moves && stays != units_.end()) {
    fail(ErrorKind::kUsage,
         "Engine::set_gradient_use(): expected gradients that all move to host memory, or none; found "
         "fsdp.move_grads_to_cpu = false in unit ",
         (*stays)->name(), "; set it and fsdp.cpu_offload, or use the gradients after backward()");
  }
  if (!use && offload_) offload_->drain();
  gradient_use_ = std::move(use);
  use_is_due_.assign(units_.size(), false);
}

void Engine::zero_gradients() {
  schedule_.forget_gradients();
  execute_commands();
  for (auto& unit : units_) {
    unit->drop_gradients();
    unit->storage().clear_shard_gradient();
  }
}

void Engine::note_changed_weights() {
  weights_changed_ = true;
  for (const auto& unit : units_) {
    if (const auto& copy = unit->storage().low_precision_shard()) copy->note_old();
  }
}

void Engine::require_no_full_parameters(const char* what) const {
  if (!shows_full_parameters_) return;
  fail(ErrorKind::kUsage, what,
       ": expected no FullParameters of the engine to be open; found one; close it first");
}

void Engine::require_rest(const char* what) const {
  require_no_full_parameters(what);
  if (schedule_.backward_is_due()) {
    fail(ErrorKind::kUsage, what,
         ": expected an engine between steps; found a forward whose backward has not run; call backward() "
         "first, run a forward that needs none under at::NoGradGuard, or drop the pass and the gradients "
         "with Engine::reset()");
  }
  const bool has_failed = !executing_.empty();
  const bool in_backward =
      schedule_.in_backward() || (has_failed && executing_.front().pass == Pass::kBackward);
  if (!has_failed && !in_backward && !schedule_.any_is_gathered()) return;
  fail(ErrorKind::kUsage, what, ": expected an engine between steps; found a ",
       in_backward ? "backward" : "forward",
       " pass that has not ended; call it after the pass, or Engine::reset() first if the pass has failed");
}

void Engine::reshard_frozen() {
  schedule_.reshard_frozen();
  execute_commands();
}

void Engine::reset() {
  schedule_.reset();
  commands_.clear();
  executing_.clear();
  for (auto& unit : units_) unit->reset();
  use_is_due_.assign(units_.size(), false);
  if (offload_) offload_->reset();
  released_ = stream_of(groups_.world->device());
  zero_gradients();
}

HandedOver Engine::hand_over() {
  require_rest("Engine::hand_over()");
  reshard_frozen();
  HandedOver handed;
  for (size_t unit = 0; unit < hooks_.size(); ++unit) {
    if (auto hook = hooks_[unit].lock()) handed.places.emplace(modules_[unit], std::move(hook));
  }
  for (const auto& unit : units_) {
    for (const NamedParameter& parameter : unit->storage().parameters()) {
      const at::ScalarType type = parameter.tensor.scalar_type() == at::kByte ? at::kByte : at::kFloat;
      util::point_at(parameter.tensor,
                     at::empty(parameter.tensor.sizes(), at::TensorOptions(at::kMeta).dtype(type)));
    }
  }
  handed.units = std::exchange(units_, {});
  modules_.clear();
  hooks_.clear();
  segments_.clear();
  buffers_.clear();
  return handed;
}

void Engine::unshard() {
  const auto keep = shared_from_this();  // the hooks may be the last owners of the engine
  require_rest("Engine::unshard()");
  reshard_frozen();
  at::NoGradGuard no_grad;
  std::vector<std::pair<at::Tensor, at::Tensor>> values;  // of parameters
  for (const auto& unit : units_) {
    const at::Tensor whole = unit->gather_weights();
    const UnitStorage& storage = unit->storage();
    for (size_t i = 0; i < storage.parameters().size(); ++i) {
      values.emplace_back(
          storage.parameters()[i].tensor,
          whole_view(storage.layout(), i, whole).to(at::kFloat, /*non_blocking=*/false, /*copy=*/true));
    }
  }
  const HandedOver handed = hand_over();
  for (const auto& [parameter, value] : values) util::point_at(parameter, value);
  for (const auto& [module, hook] : handed.places) module->replace(*hook, nullptr);
}

void Engine::attach_hooks(HookPlaces places) {
  hooks_.resize(modules_.size());
  for (size_t unit = 0; unit < modules_.size(); ++unit) {
    nn::Hookable* module = modules_[unit];
    if (module == nullptr) continue;
    auto hook = make_unit_hook(shared_from_this(), unit);
    hooks_[unit] = hook;
    if (const auto place = places.extract(module)) {
      module->replace(*place.mapped(), std::move(hook));
    } else {
      module->attach(std::move(hook));
    }
  }
  for (const auto& [module, hook] : places) module->replace(*hook, nullptr);
}

// ---- units

size_t Engine::index_of(const Unit& unit) const {
  const auto found =
      std::find_if(units_.begin(), units_.end(), [&](const auto& each) { return each.get() == &unit; });
  FSDP_CHECK(found != units_.end(), "unit ", unit.name(), " is of another engine");
  return static_cast<size_t>(found - units_.begin());
}

bool Engine::is_root(const Unit& unit) const { return index_of(unit) < schedule_.root_units(); }

bool Engine::input_is_differentiable(const Unit& unit) const { return differentiable_input_[index_of(unit)]; }

bool Engine::output_is_differentiable(const Unit& unit) const {
  return differentiable_output_[index_of(unit)];
}

Traffic Engine::traffic() const {
  Traffic total;
  for (const auto& unit : units_) total += unit->traffic();
  return total;
}

void Engine::reset_counters() {
  pool_->reset_peaks();
  for (auto& unit : units_) unit->reset_traffic();
}

int64_t Engine::shard_bytes() const {
  int64_t bytes = 0;
  for (const auto& unit : units_) bytes += static_cast<int64_t>(unit->storage().shard().nbytes());
  return bytes;
}

int64_t Engine::source_bytes() const {
  int64_t bytes = 0;
  for (const auto& unit : units_) bytes += unit->storage().source_bytes();
  return bytes;
}

}  // namespace fsdp::shard
