// fully_shard(): from options and a model to an engine with its surrounds attached.

#include <algorithm>

#include "shard/autograd_hooks.h"
#include "shard/engine.h"
#include "shard/option_conflicts.h"
#include "shard/profile_range.h"
#include "shard/wrap_policy.h"
#include "util/dtype.h"
#include "util/error.h"

namespace fsdp::shard {

/// What the engine attaches to the stage of each unit.
class Engine::UnitSurround final : public nn::Surround {
 public:
  UnitSurround(std::shared_ptr<Engine> engine, size_t index)
      : engine_(std::move(engine)),
        index_(index),
        input_dtype_(engine_->units_[index]->options().storage.param_dtype) {}

  at::Tensor around(nn::Stage&, const at::Tensor& input, const Next& next) override {
    bool recording = at::GradMode::is_enabled();
    if (index_ == 0) engine_->pass_records_ = recording;
    engine_->before_forward(index_);
    at::Tensor inner = input;
    if (engine_->options_.mixed_precision.cast_forward_inputs && input.is_floating_point()) {
      inner = inner.to(input_dtype_);
    }
    if (recording) engine_->differentiable_input_[index_] = inner.requires_grad();
    if (recording && inner.requires_grad()) {
      inner =
          when_backward_ends(inner, [engine = engine_, index = index_] { engine->after_backward(index); });
    }
    at::Tensor output;
    {
      const ProfileRange range("unit/forward", engine_->units_[index_]->name());
      output = next(inner);
    }
    bool backward_will_follow = recording && output.requires_grad();
    // Inside of a stage that is to be recomputed nothing is recorded, but its backward follows all the same.
    bool will_be_recomputed = !recording && engine_->pass_records_;
    engine_->after_forward(index_, backward_will_follow || will_be_recomputed);
    if (backward_will_follow) {
      when_backward_begins(output, [engine = engine_, index = index_] { engine->before_backward(index); });
    }
    return output;
  }

 private:
  std::shared_ptr<Engine> engine_;
  size_t index_;
  at::ScalarType input_dtype_;
};

namespace {

bool is_root_plan(const UnitPlan& plan, const UnitPlan& root) { return plan.stage == root.stage; }

void require_real_buffers(nn::Stage& root) {
  for (const auto& buffer : root.named_buffers()) {
    if (!buffer.value().is_meta()) continue;
    util::fail(util::ErrorKind::kUsage, "buffer ", buffer.key(),
               ": expected values; found a tensor on the meta device, which has none; make buffers on a real "
               "device, on which only parameters may be missing");
  }
}

void cast_buffers(nn::Stage& root, at::ScalarType dtype) {
  at::NoGradGuard no_grad;
  for (const auto& buffer : root.named_buffers()) {
    at::Tensor tensor = buffer.value();
    if (tensor.is_floating_point() && tensor.scalar_type() != dtype) tensor.set_data(tensor.to(dtype));
  }
}

}  // namespace

std::shared_ptr<Engine> fully_shard(nn::Stage& root, const ShardOptions& options,
                                    std::shared_ptr<comm::Communicator> communicator,
                                    std::shared_ptr<comm::Trace> trace, const Materialize& materialize) {
  return fully_shard(root, options, comm::Mesh({}, std::move(communicator)), std::move(trace), materialize);
}

std::shared_ptr<Engine> fully_shard(nn::Stage& root, const ShardOptions& options, const comm::Mesh& mesh,
                                    std::shared_ptr<comm::Trace> trace, const Materialize& materialize) {
  require_no_option_conflicts(options);
  require_real_buffers(root);
  std::vector<UnitPlan> plans = plan_units(root, options);
  auto engine = std::make_shared<Engine>(options, mesh);
  engine->attach(plans, trace, materialize);
  cast_buffers(root, util::dtype_from_name(options.mixed_precision.buffer_dtype));
  return engine;
}

void Engine::attach(const std::vector<UnitPlan>& plans, const std::shared_ptr<comm::Trace>& trace,
                    const Materialize& materialize) {
  root_units_ = static_cast<size_t>(std::count_if(
      plans.begin(), plans.end(), [&](const UnitPlan& plan) { return is_root_plan(plan, plans.front()); }));
  for (const UnitPlan& plan : plans) {
    size_t index = units_.size();
    bool root = is_root_plan(plan, plans.front());
    const ProcessGroups& groups = plan.replicated ? replicated_groups_ : groups_;
    UnitOptions options =
        unit_options(options_, {.name = plan.name, .is_root = root, .keep_float32 = plan.keep_float32},
                     groups_.world->world_size());
    Unit& unit = *units_.emplace_back(
        std::make_unique<Unit>(plan, groups, options, UnitParts{pool_, trace, materialize, link_}));
    const UnitLayout& layout = unit.storage().layout();
    for (size_t i = 0; i < layout.parameters().size(); ++i) {
      const ParameterPlace& place = layout.parameters()[i];
      LocalRange range = layout.local_range(i, groups.shard->rank());
      segments_.push_back({.name = place.name,
                           .shape = place.shape,
                           .requires_grad = plan.parameters[i].tensor.requires_grad(),
                           .unit = index,
                           .rows = range.rows,
                           .begin = range.begin,
                           .end = range.end,
                           .shard_offset = range.shard_offset});
    }
  }
  differentiable_input_.assign(units_.size(), true);
  passes_.resize(units_.size());
  // The last step that may fail is done; from here on the stages know the engine.
  for (size_t index = 0; index < plans.size(); ++index) {
    if (index != 0 && index < root_units_) continue;  // lives with the root
    plans[index].stage->attach(std::make_shared<UnitSurround>(shared_from_this(), index));
    stages_.push_back(plans[index].stage);
  }
}

void Engine::unshard() {
  require_rest("Engine::unshard()");
  at::NoGradGuard no_grad;
  for (const auto& unit : units_) {
    at::Tensor whole = unit->gather_master_weights();
    const UnitStorage& storage = unit->storage();
    for (size_t i = 0; i < storage.parameters().size(); ++i) {
      const ParameterPlace& place = storage.layout().parameters()[i];
      at::Tensor parameter = storage.parameters()[i].tensor;
      parameter.set_data(whole.narrow(0, place.offset, place.numel).view(place.shape).clone());
    }
  }
  auto keep = shared_from_this();  // the surrounds hold the engine
  for (nn::Stage* stage : stages_) stage->detach_surrounds();
  stages_.clear();
  segments_.clear();
  units_.clear();
}

}  // namespace fsdp::shard
