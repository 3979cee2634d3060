#pragma once

// The training loop of the examples: every rank computes its share of a global batch, gradients are averaged over
// the ranks as backward goes, and each rank updates its shards.

#include <ATen/Functions.h>
#include <comm/launch_environment.h>
#include <comm/make_communicator.h>
#include <optim/engine_shards.h>
#include <optim/optimizer.h>
#include <shard/fully_shard.h>
#include <shard/grad_norm.h>
#include <util/error.h>

#include <cstdio>

namespace examples {

constexpr int64_t kGlobalBatch = 8, kSteps = 20;

/// Trains `model`, a holder of fsdp::nn::Hooked, with AdamW. `loss_of(first_row, rows, step)` gives the mean loss
/// of these rows of the step's global batch. Rank 0 prints the mean over all rows of each step.
template <typename Model, typename Loss>
int train(Model& model, const Loss& loss_of) {
  return fsdp::util::run_guarded([&] {
    const auto communicator = fsdp::comm::make_communicator(fsdp::comm::read_launch_environment(), {});
    fsdp::shard::ShardOptions options;
    options.min_num_params = 500;  // modules with as many parameters are units
    auto engine = fsdp::shard::fully_shard(*model, options, communicator);
    const fsdp::optim::OptimizerOptions update{.name = "adamw", .lr = 1e-2};
    auto optimizer = fsdp::optim::make_optimizer(update, fsdp::optim::flat_parameters(*engine, update));

    const int64_t rows = kGlobalBatch / communicator->world_size();
    for (int64_t step = 0; step < kSteps; ++step) {
      engine->zero_gradients();
      at::Tensor loss = loss_of(communicator->rank() * rows, rows, step);
      loss.backward();
      fsdp::shard::clip_grad_norm(*engine, /*max_norm=*/1.0);
      optimizer->step(fsdp::optim::shard_gradients(*engine), update.lr);
      at::Tensor mean = loss.detach().clone().reshape({1});
      communicator->all_reduce(mean, fsdp::comm::ReduceOp::kSum, {.unit = "loss"})->wait();
      if (communicator->rank() == 0) {
        std::printf("step %2d loss %.6f\n", static_cast<int>(step), mean.item<double>() / communicator->world_size());
      }
    }
    return 0;
  });
}

}  // namespace examples
