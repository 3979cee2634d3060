#include "state/outer/outer_optimizer.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/sub.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <utility>

#include "base/util/error.h"
#include "base/util/hash.h"
#include "shard/engine/engine.h"

namespace fsdp::optim {
namespace {

constexpr const char* kComparison = "comparison of replicas";

int64_t hash_of_tensor(const at::Tensor& tensor) {
  const at::Tensor host = tensor.to(at::kCPU).contiguous();
  return static_cast<int64_t>(util::xxh3_64(host.data_ptr(), host.nbytes()));
}

/// Shares the trained units out among the fragments, so that these have about as many elements each and,
/// where units are alike, every n-th unit. The same on every rank.
std::vector<std::vector<size_t>> fragments_of(const shard::Engine& engine, const Optimizer& inner,
                                              int64_t count) {
  std::vector<std::vector<size_t>> fragments(static_cast<size_t>(count));
  std::vector<int64_t> numels(fragments.size(), 0);
  for (size_t unit = 0; unit < inner.parameters().size(); ++unit) {
    if (inner.parameters()[unit].tensors.empty()) continue;
    const auto smallest = static_cast<size_t>(std::ranges::min_element(numels) - numels.begin());
    fragments[smallest].push_back(unit);
    numels[smallest] += engine.units()[unit]->storage().layout().numel();
  }
  return fragments;
}

}  // namespace

OuterOptimizer::OuterOptimizer(const OuterOptions& options, int64_t local_steps, shard::Engine& engine,
                               const Optimizer& inner, std::shared_ptr<comm::Communicator> replicas)
    : options_(options),
      schedule_{.local_steps = local_steps, .fragments = options.fragments, .delay = options.fragment_delay},
      engine_(engine),
      inner_(inner),
      replicas_(std::move(replicas)),
      contributors_(replicas_->world_size()),
      fragments_(fragments_of(engine, inner, options.fragments)),
      units_(inner.parameters().size()),
      exchanges_(inner.parameters().size()) {
  const auto trained =
      std::ranges::count_if(inner.parameters(), [](const auto& unit) { return !unit.tensors.empty(); });
  require(options.fragments <= trained, "outer_optimizer.fragments must be at most ", trained,
          ", the number of units with trained parameters, but is ", options.fragments,
          "; lower it, or make smaller units with fsdp.min_num_params");
}

void OuterOptimizer::allocate() {
  at::NoGradGuard no_grad;
  for (const std::vector<size_t>& fragment : fragments_) {
    for (const size_t i : fragment) {
      UnitState& unit = units_[i];
      if (unit.outer.defined()) continue;
      const at::Tensor& weights = inner_.parameters()[i].value;
      // Zeros, because padding of shards is compared too and no checkpoint has it.
      unit.outer = at::zeros_like(weights, weights.options().dtype(at::kFloat));
      if (options_.momentum > 0) unit.buffer = at::zeros_like(unit.outer);
    }
  }
}

void OuterOptimizer::begin() {
  if (std::exchange(has_state_, true)) return;
  allocate();
  at::NoGradGuard no_grad;
  for (size_t i = 0; i < units_.size(); ++i) {
    if (units_[i].outer.defined()) units_[i].outer.copy_(inner_.parameters()[i].value);
  }
}

void OuterOptimizer::after_step(int64_t step, bool is_last) {
  FSDP_CHECK(has_state_);
  has_local_weights_ = true;
  std::vector<size_t> ending, beginning;
  for (size_t fragment = 0; fragment < fragments_.size(); ++fragment) {
    const auto number = static_cast<int64_t>(fragment);
    if (schedule_.delay > 0 && (is_last || schedule_.ends(step, number))) ending.push_back(fragment);
    if (is_last || schedule_.begins(step, number)) beginning.push_back(fragment);
  }
  for (const size_t fragment : ending) settle(fragment);
  use({.fragments = std::move(ending), .step = step, .mixing = options_.mixing});
  for (const size_t fragment : beginning) begin_exchange(fragment);
  if (beginning.empty() || (schedule_.delay > 0 && !is_last)) return;
  for (const size_t fragment : beginning) settle(fragment);
  settled_ = Settled{.fragments = std::move(beginning), .step = step};
  if (before_use_) before_use_();
  finish();
}

void OuterOptimizer::finish() { use(*std::exchange(settled_, std::nullopt)); }

void OuterOptimizer::use(const Settled& settled) {
  if (settled.fragments.empty()) return;
  if (step_pre_hook_) step_pre_hook_();
  at::NoGradGuard no_grad;
  for (const size_t fragment : settled.fragments) {
    for (const size_t i : fragments_[fragment]) {
      if (!units_[i].delta.defined()) continue;  // the run was resumed after the begin of this exchange
      update(units_[i], inner_.parameters()[i].value, settled.mixing);
      units_[i].delta = at::Tensor();
    }
  }
  last_exchange_ = settled.step;
  contributes_ = true;
  contributors_ = replicas_->world_size();
  engine_.note_changed_weights();
  has_local_weights_ = settled.mixing > 0 || settled.fragments.size() < fragments_.size();
}

void OuterOptimizer::begin_exchange(size_t fragment) {
  at::NoGradGuard no_grad;
  for (const size_t i : fragments_[fragment]) {
    UnitState& unit = units_[i];
    unit.delta =
        contributes_ ? at::sub(unit.outer, inner_.parameters()[i].value) : at::zeros_like(unit.outer);
    exchanges_[i] = std::make_unique<Exchange>(
        unit.delta, options_.reduce_dtype, replicas_, engine_.options().quantization_seed,
        comm::CallSite{.unit = engine_.units()[i]->name(), .pass = "optimizer"});
  }
}

void OuterOptimizer::settle(size_t fragment) {
  for (const size_t i : fragments_[fragment]) {
    if (!exchanges_[i]) continue;
    exchanges_[i]->wait();
    exchanges_[i]->mean(contributors_);
    exchanges_[i].reset();
  }
}

void OuterOptimizer::update(UnitState& unit, const at::Tensor& weights, double mixing) {
  if (!unit.buffer.defined()) {
    unit.outer.add_(unit.delta, -options_.lr);
  } else {
    unit.buffer.mul_(options_.momentum).add_(unit.delta);
    if (options_.name == OuterRule::kNesterov) {
      unit.outer.add_(unit.delta, -options_.lr).add_(unit.buffer, -options_.lr * options_.momentum);
    } else {
      unit.outer.add_(unit.buffer, -options_.lr);
    }
  }
  at::Tensor own = weights;
  mixing == 0 ? own.copy_(unit.outer) : own.mul_(mixing).add_(unit.outer, 1 - mixing);
}

std::shared_ptr<void> OuterOptimizer::show_outer_weights() {
  if (!has_local_weights_) return nullptr;
  const auto exchange = [this] {
    at::NoGradGuard no_grad;
    if (step_pre_hook_) step_pre_hook_();
    for (size_t i = 0; i < units_.size(); ++i) {
      if (!units_[i].outer.defined()) continue;
      at::Tensor weights = inner_.parameters()[i].value;
      const at::Tensor kept = weights.clone();
      weights.copy_(units_[i].outer);
      units_[i].outer.copy_(kept);
    }
    engine_.note_changed_weights();
  };
  exchange();
  return std::shared_ptr<void>(this, [exchange](void*) { exchange(); });
}

void OuterOptimizer::require_equal(comm::Communicator& world, const std::string& when) const {
  std::vector<size_t> trained;
  for (size_t i = 0; i < units_.size(); ++i) {
    if (units_[i].outer.defined()) trained.push_back(i);
  }
  // Hashes and their complements: where all are equal, so are the largest of both.
  at::Tensor largest = at::empty({static_cast<int64_t>(trained.size()), 2}, at::kLong);
  auto hashes = largest.accessor<int64_t, 2>();
  for (int64_t row = 0; row < hashes.size(0); ++row) {
    const UnitState& unit = units_[trained[static_cast<size_t>(row)]];
    hashes[row][0] = hash_of_tensor(unit.outer);
    if (unit.buffer.defined()) hashes[row][0] ^= hash_of_tensor(unit.buffer) * 3;
    hashes[row][1] = ~hashes[row][0];
  }
  replicas_->all_reduce(largest, comm::ReduceOp::kMax, {.unit = kComparison})->wait();
  comm::agree_at_once(world, kComparison, [&] {
    for (int64_t row = 0; row < hashes.size(0); ++row) {
      if (hashes[row][0] == ~hashes[row][1]) continue;
      fail(
          ErrorKind::kUnexpected, when, ": expected the same outer weights on all replicas; unit ",
          engine_.units()[trained[static_cast<size_t>(row)]]->name(),
          " differs between them; start all replicas from the same weights, or resume from an earlier checkpoint");
    }
  });
}

const std::vector<OuterOptimizer::UnitState>& OuterOptimizer::settled_state() {
  for (size_t fragment = 0; fragment < fragments_.size(); ++fragment) settle(fragment);
  return units_;
}

const std::vector<OuterOptimizer::UnitState>& OuterOptimizer::state_in_memory() {
  allocate();
  return units_;
}

const std::vector<OuterOptimizer::UnitState>& OuterOptimizer::state_to_load(int64_t step) {
  allocate();
  at::NoGradGuard no_grad;
  for (size_t fragment = 0; fragment < fragments_.size(); ++fragment) {
    for (const size_t i : fragments_[fragment]) {
      if (units_[i].buffer.defined()) units_[i].buffer.zero_();
      units_[i].delta = at::Tensor();
      if (schedule_.is_under_way(step, static_cast<int64_t>(fragment)))
        units_[i].delta = at::zeros_like(units_[i].outer);
    }
  }
  return units_;
}

void OuterOptimizer::loaded(bool has_local_weights, const std::vector<bool>& has_delta,
                            int64_t last_exchange) {
  has_state_ = true;
  has_local_weights_ = has_local_weights;
  last_exchange_ = last_exchange;
  at::NoGradGuard no_grad;
  for (size_t i = 0; i < units_.size(); ++i) {
    if (!units_[i].outer.defined()) continue;
    if (!has_delta[i]) units_[i].delta = at::Tensor();
    if (!has_local_weights) at::Tensor(inner_.parameters()[i].value).copy_(units_[i].outer);
  }
  engine_.note_changed_weights();
}

int64_t OuterOptimizer::state_bytes() const {
  int64_t bytes = 0;
  for (const std::vector<size_t>& fragment : fragments_) {
    for (const size_t i : fragment) {
      bytes += 4 * inner_.parameters()[i].value.numel() * (options_.momentum > 0 ? 2 : 1);
    }
  }
  return bytes;
}

int64_t OuterOptimizer::payload_bytes() const {
  int64_t bytes = 0;
  for (const std::vector<size_t>& fragment : fragments_) {
    for (const size_t i : fragment) {
      bytes += Exchange::payload_bytes(inner_.parameters()[i].value.numel(), options_.reduce_dtype,
                                       replicas_->world_size());
    }
  }
  return bytes;
}

}  // namespace fsdp::optim
