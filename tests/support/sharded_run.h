#pragma once

// Trains a sharded model on ranks that are threads, and an unsharded one beside it, to compare.

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "comm/thread_communicator.h"
#include "shard/engine.h"
#include "shard/grad_norm.h"
#include "shard/state_dict.h"
#include "support/tiny_models.h"

namespace fsdp::testing {

inline std::shared_ptr<comm::Communicator> borrowed(comm::Communicator& communicator) {
  return std::shared_ptr<comm::Communicator>(&communicator, [](comm::Communicator*) {});
}

struct RunPlan {
  nn::ModelOptions model = tiny_options();
  shard::ShardOptions shard;
  int64_t steps = 3;
  int64_t global_rows = 12;  ///< of a step, over all ranks and micro-batches
  int64_t accumulation = 1;
  double learning_rate = 0.5;
  double max_norm = 0;
};

struct RunResult {
  std::vector<double> losses, norms;
  std::map<std::string, at::Tensor> weights;
};

inline void sgd_on_shards(shard::Engine& engine, double learning_rate) {
  at::NoGradGuard no_grad;
  for (const auto& unit : engine.units()) {
    const at::Tensor& gradient = unit->storage().shard_gradient();
    if (gradient.defined()) unit->storage().shard().sub_(gradient, learning_rate);
  }
}

inline RunResult train_sharded(int world_size, const RunPlan& plan) {
  RunResult result;
  comm::run_ranks_as_threads(world_size, [&](comm::Communicator& communicator) {
    auto model = make_initialized(plan.model);
    auto engine = shard::fully_shard(*model, plan.shard, borrowed(communicator));
    int64_t rows = plan.global_rows / plan.accumulation / world_size;
    for (int64_t step = 0; step < plan.steps; ++step) {
      engine->zero_gradients();
      double total = 0;
      for (int64_t micro = 0; micro < plan.accumulation; ++micro) {
        int64_t first = step * plan.global_rows + (micro * world_size + communicator.rank()) * rows;
        at::Tensor loss = loss_of(*model, token_rows(first, rows, 9, plan.model.vocab_size)) /
                          static_cast<double>(plan.accumulation);
        loss.backward();
        total += loss.item<double>();
      }
      double norm = shard::clip_grad_norm(*engine, plan.max_norm);
      sgd_on_shards(*engine, plan.learning_rate);
      at::Tensor sum = at::full({1}, total, at::kDouble);
      communicator.all_reduce(sum, comm::ReduceOp::kSum, {.unit = "loss"})->wait();
      if (communicator.rank() == 0) {
        result.losses.push_back(sum.item<double>() / world_size);
        result.norms.push_back(norm);
      }
    }
    for (auto& [name, weight] : shard::full_state_dict(*engine, {.rank0_only = true})) {
      result.weights[name] = std::move(weight);
    }
  });
  return result;
}

inline RunResult train_unsharded(const RunPlan& plan) {
  RunResult result;
  auto model = make_initialized(plan.model);
  for (int64_t step = 0; step < plan.steps; ++step) {
    model->zero_grad();
    at::Tensor loss =
        loss_of(*model, token_rows(step * plan.global_rows, plan.global_rows, 9, plan.model.vocab_size));
    loss.backward();
    at::NoGradGuard no_grad;
    std::vector<at::Tensor> gradients;
    std::set<const void*> seen;  // a tied parameter is listed under each of its names
    for (const at::Tensor& parameter : model->parameters()) {
      if (!seen.insert(parameter.unsafeGetTensorImpl()).second) continue;
      if (parameter.grad().defined()) gradients.push_back(parameter.grad().flatten());
    }
    double norm = at::cat(gradients).norm().item<double>();
    double scale = plan.max_norm > 0 ? std::min(1.0, plan.max_norm / (norm + 1e-6)) : 1.0;
    result.losses.push_back(loss.item<double>());
    for (at::Tensor parameter : model->parameters()) {
      if (!parameter.grad().defined()) continue;
      parameter.sub_(parameter.grad(), plan.learning_rate * scale);
      parameter.mutable_grad() = at::Tensor();
    }
    result.norms.push_back(norm);
  }
  for (const auto& parameter : model->named_parameters()) {
    result.weights[parameter.key()] = parameter.value().detach().clone();
  }
  return result;
}

}  // namespace fsdp::testing
