#include "shard/engine.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "comm/single_communicator.h"
#include "shard/autograd_hooks.h"
#include "shard/wrap_policy.h"
#include "util/error.h"

namespace fsdp::shard {

/// What the engine attaches to the stage of each unit.
class Engine::UnitSurround final : public nn::Surround {
 public:
  UnitSurround(std::shared_ptr<Engine> engine, Unit& unit) : engine_(std::move(engine)), unit_(unit) {}

  at::Tensor around(nn::Stage&, const at::Tensor& input, const Next& next) override {
    Engine* engine = engine_.get();
    Unit* unit = &unit_;
    bool recording = at::GradMode::is_enabled();

    engine->before_forward(*unit);
    at::Tensor watched = input;
    if (recording && input.requires_grad()) {
      watched = when_backward_ends(input, [keep = engine_, unit] { keep->after_backward(*unit); });
    }
    at::Tensor output = next(watched);
    bool backward_will_follow = recording && output.requires_grad();
    engine->after_forward(*unit, backward_will_follow);
    if (backward_will_follow) {
      when_backward_begins(output, [keep = engine_, unit] { keep->before_backward(*unit); });
    }
    return output;
  }

 private:
  std::shared_ptr<Engine> engine_;
  Unit& unit_;
};

namespace {

ProcessGroups groups_for(const std::string& strategy, std::shared_ptr<comm::Communicator> world) {
  if (strategy == "full_shard" || strategy == "shard_grad_op") return {world, world, nullptr};
  if (strategy == "no_shard") return {world, std::make_shared<comm::SingleCommunicator>(), world};
  util::fail(util::ErrorKind::kUsage,
             "fsdp.strategy: expected full_shard, shard_grad_op or no_shard; found \"", strategy, "\"");
}

}  // namespace

std::shared_ptr<Engine> fully_shard(nn::Stage& root, const ShardOptions& options,
                                    std::shared_ptr<comm::Communicator> communicator,
                                    std::shared_ptr<comm::Trace> trace) {
  auto plans = plan_units(root, options);
  auto engine = std::make_shared<Engine>(options, groups_for(options.strategy, std::move(communicator)));
  engine->attach(plans, trace);
  return engine;
}

Engine::Engine(const ShardOptions& options, const ProcessGroups& groups)
    : options_(options), groups_(groups) {}

bool Engine::reshards_after_forward() const {
  return options_.strategy == "full_shard" && options_.reshard_after_forward;
}

void Engine::attach(const std::vector<UnitPlan>& plans, const std::shared_ptr<comm::Trace>& trace) {
  for (const UnitPlan& plan : plans) {
    size_t index = units_.size();
    Unit& unit = *units_.emplace_back(std::make_unique<Unit>(plan, groups_, trace));
    plan.stage->attach(std::make_shared<UnitSurround>(shared_from_this(), unit));
    const FlatLayout& layout = unit.storage().layout();
    for (size_t i = 0; i < layout.parameters().size(); ++i) {
      const ParameterPlace& place = layout.parameters()[i];
      LocalRange range = layout.local_range(i, groups_.shard->rank());
      segments_.push_back({.name = place.name,
                           .shape = place.shape,
                           .requires_grad = plan.parameters[i].tensor.requires_grad(),
                           .unit = index,
                           .begin = range.begin,
                           .end = range.end,
                           .shard_offset = range.shard_offset});
    }
  }
}

void Engine::before_forward(Unit& unit) {
  if (is_root(unit)) {
    FSDP_CHECK(!in_backward_, "a backward pass has failed; call Engine::reset() before the next forward");
    // A forward whose loss was never differentiated left units gathered, and the optimizer may have run
    // since.
    for (auto& each : units_) each->reshard();
    kept_ = nullptr;
    begun_.clear();
    ended_.clear();
  }
  begun_.push_back(&unit);
  release_kept_unit(&unit);
  unit.finish_gather("forward");
  prefetch_forward();
  note_memory();
}

void Engine::after_forward(Unit& unit, bool backward_will_follow) {
  ended_.push_back(&unit);
  if (is_root(unit)) {
    last_order_ = begun_;
    if (!backward_will_follow) {
      for (auto& each : units_) each->reshard();
      kept_ = nullptr;
    }
    return;
  }
  if (backward_will_follow && !reshards_after_forward()) return;
  release_kept_unit(&unit);
  kept_ = &unit;
}

void Engine::release_kept_unit(const Unit* except) {
  if (kept_ == nullptr || kept_ == except) return;
  kept_->reshard();
  kept_ = nullptr;
}

/// With the order of the last pass known, the next unit's all-gather runs beside this unit's compute.
void Engine::prefetch_forward() {
  if (options_.forward_prefetch != "explicit" || begun_.size() >= last_order_.size()) return;
  if (!std::equal(begun_.begin(), begun_.end(), last_order_.begin())) return;
  last_order_[begun_.size()]->start_gather("forward");
}

void Engine::before_backward(Unit& unit) {
  if (!in_backward_) {
    in_backward_ = true;
    kept_ = nullptr;  // from here on each unit is freed when its own backward has ended
    when_whole_backward_ends([keep = shared_from_this()] { keep->after_whole_backward(); });
  }
  unit.finish_gather("backward");
  if (options_.backward_prefetch == "pre") prefetch_backward(unit);
  unit.attach_gradients();
  note_memory();
}

/// Backward meets the units in the reverse of the order in which their forwards ended.
void Engine::prefetch_backward(const Unit& unit) {
  auto here = std::find(ended_.rbegin(), ended_.rend(), &unit);
  if (here == ended_.rend() || ++here == ended_.rend()) return;
  (*here)->start_gather("backward");
}

void Engine::after_backward(Unit& unit) {
  unit.reshard();
  if (unit.gradients_are_attached()) reduce(unit);
  if (options_.backward_prefetch == "post") prefetch_backward(unit);
}

/// At most one reduce-scatter is under way, so at most two gradient buffers exist.
void Engine::reduce(Unit& unit) {
  finish_reduction();
  reducing_ = &unit;
  unit.start_reduction();
  note_memory();
}

void Engine::finish_reduction() {
  if (reducing_ == nullptr) return;
  std::exchange(reducing_, nullptr)->finish_reduction();
}

/// Units whose stage has no differentiable input (the root, embeddings) are reduced here.
void Engine::after_whole_backward() {
  for (auto unit = units_.rbegin(); unit != units_.rend(); ++unit) {
    if ((*unit)->gradients_are_attached()) reduce(**unit);
  }
  finish_reduction();
  for (auto& unit : units_) unit->reshard();
  in_backward_ = false;
}

void Engine::zero_gradients() {
  for (auto& unit : units_) unit->storage().set_shard_gradient({});
}

void Engine::for_each_full_parameter(
    const std::function<void(const std::string& name, const at::Tensor& parameter)>& visit) {
  at::NoGradGuard no_grad;
  for (auto& unit : units_) {
    FSDP_CHECK(unit->state() == Unit::State::kSharded, "unit ", unit->name(), " is in use");
    unit->finish_gather("other");
    for (const NamedParameter& parameter : unit->storage().parameters()) {
      visit(parameter.name, parameter.tensor.detach());
    }
    unit->reshard();
  }
}

void Engine::reset() {
  for (auto& unit : units_) unit->reset();
  zero_gradients();
  kept_ = nullptr;
  reducing_ = nullptr;
  in_backward_ = false;
  begun_.clear();
  ended_.clear();
}

int64_t Engine::live_unsharded_bytes() const {
  int64_t bytes = 0;
  for (const auto& unit : units_) bytes += unit->live_bytes();
  return bytes;
}

int64_t Engine::shard_bytes() const {
  int64_t bytes = 0;
  for (const auto& unit : units_) bytes += static_cast<int64_t>(unit->storage().shard().nbytes());
  return bytes;
}

void Engine::note_memory() {
  peak_unsharded_bytes_ = std::max(peak_unsharded_bytes_, live_unsharded_bytes());
}

}  // namespace fsdp::shard
