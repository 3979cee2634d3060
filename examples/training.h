#pragma once

// The training loop of the examples: every rank computes its share of a global batch, gradients are averaged
// over the ranks during backward, and each rank updates its shards.

#include <ATen/Functions.h>
#include <fsdp/communicator.h>
#include <fsdp/error.h>
#include <fsdp/fully_shard.h>
#include <fsdp/grad_norm.h>
#include <fsdp/optimizer.h>

#include <cstdio>

namespace examples {

constexpr int64_t kGlobalBatch = 8, kSteps = 20;

/// Trains `model`, a holder of fsdp::Hooked, with AdamW. `loss_of(first_row, rows, step)` returns the mean
/// loss of these rows of the step's global batch. Rank 0 prints the mean over all rows of each step.
template <typename Model, typename Loss>
int train(Model& model, const Loss& loss_of) {
  return fsdp::run_guarded([&] {
    const auto communicator = fsdp::make_communicator(fsdp::read_launch_environment(), {});
    fsdp::ShardOptions options;
    options.min_num_params = 500;  // modules with at least this many parameters are units
    auto engine = fsdp::fully_shard(*model, options, communicator);
    const fsdp::OptimizerOptions update{.name = "adamw", .lr = 1e-2};
    auto optimizer = fsdp::make_optimizer(update, fsdp::flat_parameters(*engine, update));

    const int64_t rows = kGlobalBatch / communicator->world_size();
    for (int64_t step = 0; step < kSteps; ++step) {
      engine->zero_gradients();
      at::Tensor loss = loss_of(communicator->rank() * rows, rows, step);
      loss.backward();
      fsdp::clip_grad_norm(*engine, /*max_norm=*/1.0);
      optimizer->step(fsdp::shard_gradients(*engine), update.lr);
      at::Tensor mean = loss.detach().clone().reshape({1});
      communicator->all_reduce(mean, fsdp::ReduceOp::kSum, {.unit = "loss"})->wait();
      if (communicator->rank() == 0) {
        std::printf("step %2d loss %.6f\n", static_cast<int>(step),
                    mean.item<double>() / communicator->world_size());
      }
    }
    return 0;
  });
}

}  // namespace examples
