#pragma once

// Trains a sharded model on ranks that are threads, and an unsharded one beside it, to compare.

#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/util/text.h"
#include "comm/threads/thread_communicator.h"
#include "model/nn/recompute.h"
#include "model/nn/stage_graphs.h"
#include "shard/engine/engine.h"
#include "shard/engine/engine_sizes.h"
#include "shard/spmd/spmd_fully_shard.h"
#include "shard/state/grad_norm.h"
#include "shard/state/state_dict.h"
#include "state/optim/engine_shards.h"
#include "support/forwarding_communicator.h"
#include "support/layout_under_test.h"
#include "support/tiny_models.h"
#include "support/wrapped_paths.h"

namespace fsdp::testing {

struct RunPlan {
  nn::ModelOptions model = tiny_options();
  shard::ShardOptions shard;
  OptionsByPath wrapped{};
  comm::MeshOptions mesh;
  int64_t steps = 3;
  int64_t global_rows = 12;  ///< of a step, over all ranks and micro-batches
  int64_t accumulation = 1;
  bool no_sync = false;             ///< accumulate unsharded gradients, reduce after the last micro-batch
  bool always_all_reduces = false;  ///< over replicas too, in every micro-batch
  double learning_rate = 0.5;
  double max_norm = 0;
  double norm_type = 2;
  std::optional<optim::OptimizerOptions> optimizer;  ///< none: plain descent
  /// Updates units as their gradients arrive in host memory; needs an optimizer and, on a device,
  /// move_grads_to_cpu.
  bool updates_in_backward = false;
  std::vector<std::string> frozen;     ///< patterns of parameter names
  std::vector<std::string> recompute;  ///< stage types
  bool recomputes_outside = false;     ///< of the units' hooks, not inside
  bool offload = false;                ///< the inputs of recomputed stages are in host memory
  util::MakeGraphPool graph_pools;     ///< blocks become graphs of these
  double router_aux_loss_coef = 0;     ///< of sharded runs
  /// Called on every rank with its model, before that is sharded.
  std::function<void(int rank, nn::Stage& model)> prepare;
  bool spmd = false;  ///< through spmd_fully_shard(), on rows that are marked
  /// Puts something between an engine and its rank's communicator.
  std::function<std::shared_ptr<comm::Communicator>(comm::Communicator&)> interpose;
  /// Called on every rank before the optimizer of a step.
  std::function<void(int rank, int64_t step)> before_optimizer;
};

struct RunResult {
  std::vector<double> losses, norms;
  std::map<std::string, at::Tensor> weights;
  std::vector<int64_t> held_bytes;  ///< by the buffer pool of rank 0 after each step
  nn::GraphCounts graphs;           ///< of rank 0
  /// Of rank 0 after the first step: the peak of gathered parameters and unreduced gradients, and its bound.
  int64_t peak_bytes = 0, bound_bytes = 0;
};

inline void sgd_on_shards(shard::Engine& engine, double learning_rate) {
  at::NoGradGuard no_grad;
  for (const auto& unit : engine.units()) {
    const at::Tensor& gradient = unit->storage().shard_gradient();
    const at::Tensor& shard = unit->storage().shard();
    if (gradient.defined()) shard.sub_(gradient.to(shard.device()), learning_rate);
  }
}

/// With the same weights on every device.
inline std::shared_ptr<nn::Stage> make_model(const RunPlan& plan, at::Device device = at::kCPU) {
  auto model = make_initialized(plan.model);
  if (!device.is_cpu()) {
    at::NoGradGuard no_grad;
    auto moved = nn::make_decoder(plan.model, device);
    auto values = model->named_parameters();
    for (const auto& parameter : moved->named_parameters()) {
      at::Tensor(parameter.value()).copy_(values[parameter.key()]);
    }
    model = moved;
  }
  for (const auto& parameter : model->named_parameters()) {
    if (util::matches_any(parameter.key(), plan.frozen)) parameter.value().requires_grad_(false);
  }
  return model;
}

/// Marks the input of a model as this rank's rows of a batch.
class MarksRows final : public nn::CallHook {
 public:
  explicit MarksRows(const comm::Mesh& mesh) : mesh_(mesh) {}
  std::shared_ptr<void> before(const nn::CallTensors& inputs) override {
    shard::mark_local_shard(*inputs.front(), mesh_, shard::batch_spec());
    return nullptr;
  }
  void after(const nn::CallTensors&) override {}

 private:
  comm::Mesh mesh_;
};

inline std::shared_ptr<shard::Engine> shard_as_planned(nn::Stage& model, const RunPlan& plan,
                                                       const comm::Mesh& mesh) {
  if (!plan.spmd) return shard_under_test(model, plan.shard, mesh);
  model.attach(std::make_shared<MarksRows>(mesh));
  shard::SpmdOptions options;
  options.shard = on_layout_under_test(plan.shard);
  options.shard.wrap_stages.clear();
  options.auto_wrap_policy = shard::any_of(
      {shard::stage_type_policy(plan.shard.wrap_stages), shard::threshold_policy(plan.shard.min_num_params)});
  return shard::spmd_fully_shard(model, mesh, {}, options);
}

/// The optimizer of the plan over the shards of an engine; null for plain descent.
inline std::unique_ptr<optim::Optimizer> optimizer_over(const shard::Engine& engine, const RunPlan& plan) {
  if (!plan.optimizer) return nullptr;
  return optim::make_optimizer(*plan.optimizer, optim::flat_parameters(engine, *plan.optimizer));
}

/// Forward and backward of all micro-batches of a step; returns this rank's mean loss. `use`: of gradients as
/// they arrive.
inline double accumulate_gradients(nn::Stage& model, shard::Engine& engine, const RunPlan& plan, int64_t step,
                                   const std::function<void(size_t unit)>& use = nullptr) {
  comm::Communicator& communicator = engine.communicator();
  int64_t rows = plan.global_rows / plan.accumulation / communicator.world_size();
  std::vector<at::Tensor> losses;  // not read before the end: that would make the host wait
  for (int64_t micro = 0; micro < plan.accumulation; ++micro) {
    engine.set_requires_gradient_sync(!plan.no_sync || micro + 1 == plan.accumulation);
    engine.set_requires_all_reduce(plan.always_all_reduces || micro + 1 == plan.accumulation);
    int64_t first =
        step * plan.global_rows + (micro * communicator.world_size() + communicator.rank()) * rows;
    std::optional<shard::GradientUse> scope;
    if (use && micro + 1 == plan.accumulation) scope.emplace(engine, use);
    const at::Tensor tokens = token_rows(first, rows, 9, plan.model.vocab_size).to(communicator.device());
    const at::Tensor whole =
        plan.router_aux_loss_coef > 0
            ? nn::loss_of(model, tokens.narrow(1, 0, 9), tokens.narrow(1, 1, 9).contiguous(),
                          {.router_aux_loss_coef = plan.router_aux_loss_coef})
            : loss_of(model, tokens);
    at::Tensor loss = whole / static_cast<double>(plan.accumulation);
    loss.backward();
    losses.push_back(loss.detach());
  }
  double total = 0;
  for (const at::Tensor& loss : losses) total += loss.item<double>();
  return total;
}

inline RunResult train_sharded(int world_size, const RunPlan& plan) {
  RunResult result;
  comm::run_ranks_as_threads(world_size, [&](comm::Communicator& communicator) {
    at::set_num_threads(1);  // ranks with a team each on a few cores wait for each other most of the time
    comm::Mesh mesh(plan.mesh, plan.interpose ? plan.interpose(communicator) : borrowed(communicator));
    auto model = make_model(plan, mesh.world()->device());
    if (plan.prepare) plan.prepare(communicator.rank(), *model);
    const auto recompute = [&](bool outside) {
      if (plan.recompute.empty() || plan.recomputes_outside != outside) return;
      if (plan.offload) {
        nn::offload_activations(*model, plan.recompute, {.least_bytes = 1, .everywhere = true});
      } else {
        nn::checkpoint_activations(*model, plan.recompute);
      }
    };
    recompute(/*outside=*/true);
    const shard::EnableWrap scope;
    wrap_paths(*model, plan.wrapped);
    auto engine = shard_as_planned(*model, plan, mesh);
    recompute(/*outside=*/false);
    std::shared_ptr<const nn::GraphCounts> graphs;
    if (plan.graph_pools) {
      graphs = nn::graph_stages(*model, {"block"}, plan.graph_pools);
      for (const auto& unit : engine->units()) unit->storage().keep_gradients_in_place();
    }
    auto optimizer = optimizer_over(*engine, plan);
    for (int64_t step = 0; step < plan.steps; ++step) {
      engine->zero_gradients();
      if (plan.updates_in_backward) optimizer->begin_step(plan.learning_rate);
      std::vector<bool> updated(engine->units().size());
      auto update = [&](size_t unit) {
        updated[unit] = true;
        optimizer->update_parameter(unit, engine->units()[unit]->storage().shard_gradient());
      };
      double total =
          accumulate_gradients(*model, *engine, plan, step,
                               plan.updates_in_backward ? std::function<void(size_t)>(update) : nullptr);
      EXPECT_EQ(engine->live_unsharded_bytes(), 0) << "after step " << step;
      double norm = shard::clip_grad_norm(*engine, plan.max_norm, plan.norm_type);
      if (plan.before_optimizer) plan.before_optimizer(communicator.rank(), step);
      if (plan.updates_in_backward) {
        for (size_t i = 0; i < updated.size(); ++i) {
          EXPECT_EQ(updated[i], engine->units()[i]->storage().shard_gradient().defined()) << i;
        }
        optimizer->end_step();
      } else if (optimizer) {
        std::vector<at::Tensor> gradients;
        for (const auto& unit : engine->units()) gradients.push_back(unit->storage().shard_gradient());
        optimizer->step(gradients, plan.learning_rate);
      } else {
        sgd_on_shards(*engine, plan.learning_rate);
      }
      at::Tensor sum = at::full({1}, total, at::kDouble);
      communicator.all_reduce(sum, comm::ReduceOp::kSum, {.unit = "loss"})->wait();
      if (step == 0) engine->reset_counters();
      if (communicator.rank() == 0) {
        result.losses.push_back(sum.item<double>() / world_size);
        result.norms.push_back(norm);
        result.held_bytes.push_back(engine->buffer_pool().held_bytes());
      }
    }
    if (communicator.rank() == 0) {
      if (graphs) result.graphs = *graphs;
      result.peak_bytes = engine->unsharded_memory().peak;
      result.bound_bytes =
          shard::step_formula(*engine, {.micro_batches = plan.accumulation, .no_sync = plan.no_sync})
              .unsharded_bytes;
    }
    for (auto& [name, weight] : shard::full_state_dict(*engine, {.rank0_only = true})) {
      result.weights[name] = weight.to(at::kCPU);
    }
  });
  return result;
}

inline RunResult train_unsharded(const RunPlan& plan) {
  RunResult result;
  at::set_num_threads(1);
  auto model = make_model(plan);
  std::vector<at::Tensor> parameters;  // a tied parameter is listed under each of its names
  std::vector<optim::FlatParameter> flat;
  std::set<const void*> seen;
  for (const auto& named : model->named_parameters()) {
    const at::Tensor& parameter = named.value();
    if (!parameter.requires_grad() || !seen.insert(parameter.unsafeGetTensorImpl()).second) continue;
    parameters.push_back(parameter);
    optim::Treatment treatment;
    if (plan.optimizer) {
      treatment = optim::treatment_of(*plan.optimizer, named.key(), parameter.sizes().vec());
    }
    flat.push_back({named.key(), parameter.detach().view({-1}), {{0, parameter.numel(), treatment}}});
  }
  std::unique_ptr<optim::Optimizer> optimizer;
  if (plan.optimizer) optimizer = optim::make_optimizer(*plan.optimizer, flat);
  for (int64_t step = 0; step < plan.steps; ++step) {
    model->zero_grad();
    at::Tensor loss =
        loss_of(*model, token_rows(step * plan.global_rows, plan.global_rows, 9, plan.model.vocab_size));
    loss.backward();
    at::NoGradGuard no_grad;
    std::vector<at::Tensor> gradients;
    for (const at::Tensor& parameter : parameters) gradients.push_back(parameter.grad().flatten());
    double norm = at::linalg_vector_norm(at::cat(gradients), plan.norm_type).item<double>();
    double scale = plan.max_norm > 0 ? std::min(1.0, plan.max_norm / (norm + 1e-6)) : 1.0;
    for (at::Tensor& gradient : gradients) gradient.mul_(scale);
    result.losses.push_back(loss.item<double>());
    result.norms.push_back(norm);
    if (optimizer) {
      optimizer->step(gradients, plan.learning_rate);
    } else {
      for (size_t i = 0; i < flat.size(); ++i) flat[i].value.sub_(gradients[i], plan.learning_rate);
    }
  }
  for (const auto& parameter : model->named_parameters()) {
    result.weights[parameter.key()] = parameter.value().detach().clone();
  }
  return result;
}

/// The same training up to rounding.
inline void expect_close_runs(const RunResult& actual, const RunResult& expected, const std::string& what) {
  ASSERT_EQ(actual.losses.size(), expected.losses.size());
  for (size_t i = 0; i < expected.losses.size(); ++i) {
    EXPECT_NEAR(actual.losses[i], expected.losses[i], 1e-5 * expected.losses[i]) << what << ", step " << i;
    EXPECT_NEAR(actual.norms[i], expected.norms[i], 1e-4 * expected.norms[i]) << what << ", step " << i;
  }
  for (const auto& [name, weight] : actual.weights) {
    EXPECT_TRUE(at::allclose(weight, expected.weights.at(name), 1e-4, 1e-5)) << what << ", " << name;
  }
}

/// The same training bit for bit.
inline void expect_identical_runs(const RunResult& actual, const RunResult& expected,
                                  const std::string& what) {
  EXPECT_EQ(actual.losses, expected.losses) << what;
  EXPECT_EQ(actual.norms, expected.norms) << what;
  ASSERT_EQ(actual.weights.size(), expected.weights.size()) << what;
  for (const auto& [name, weight] : actual.weights) {
    EXPECT_TRUE(at::equal(weight, expected.weights.at(name))) << what << ", " << name;
  }
}

}  // namespace fsdp::testing
