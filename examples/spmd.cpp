// FSDP via SPMD, as in PyTorch/XLA: a mesh, marks on tensors, and a wrapper around a module.

#include <ATen/Functions.h>
#include <fsdp/communicator.h>
#include <fsdp/error.h>
#include <fsdp/fully_shard.h>
#include <fsdp/grad_norm.h>
#include <fsdp/mesh.h>
#include <fsdp/module.h>
#include <fsdp/optimizer.h>
#include <fsdp/spmd.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

#include <cstdio>

namespace {

constexpr int64_t kBatch = 8, kInputs = 6, kWidth = 16, kSteps = 20;

/// x: [B, kWidth] -> the same
struct BlockImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) { return x + out(at::gelu(in(x))); }

  torch::nn::Linear in = register_module("in", torch::nn::Linear(kWidth, 4 * kWidth));
  torch::nn::Linear out = register_module("out", torch::nn::Linear(4 * kWidth, kWidth));
};

/// x: [B, kInputs] -> [B, 1]
struct NetImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) { return head(second(first(stem(x)))); }

  torch::nn::Linear stem = register_module("stem", torch::nn::Linear(kInputs, kWidth));
  fsdp::Hooked<BlockImpl> first = register_module("first", fsdp::Hooked<BlockImpl>());
  fsdp::Hooked<BlockImpl> second = register_module("second", fsdp::Hooked<BlockImpl>());
  torch::nn::Linear head = register_module("head", torch::nn::Linear(kWidth, 1));
};

}  // namespace

int main() {
  return fsdp::run_guarded([] {
    // -1: all ranks that the other axes do not use
    const auto world = fsdp::make_communicator(fsdp::read_launch_environment(), {});
    const fsdp::Mesh mesh({.dcn = 1, .data = -1}, world);

    torch::manual_seed(1);  // the same first weights on every rank
    auto net = std::make_shared<NetImpl>();
    // Without a mark, the largest dimension of a parameter is sharded.
    fsdp::mark_sharding(net->stem->weight, mesh, {{fsdp::MeshAxis::kData}, {}});

    fsdp::SpmdOptions options;
    options.auto_wrap_policy = fsdp::stage_type_policy({"Block"});  // a unit for each block, one for the rest
    fsdp::SpmdFullyShardedDataParallel<NetImpl> model(net, mesh, {}, options);

    fsdp::Engine& engine = model.engine();
    const fsdp::OptimizerOptions update{.name = "adamw", .lr = 1e-2};
    auto optimizer = fsdp::make_optimizer(update, fsdp::flat_parameters(engine, update));
    for (int64_t step = 0; step < kSteps; ++step) {
      // The whole batch, on every rank.
      const at::Tensor inputs = at::sin(at::arange(kBatch * kInputs).view({kBatch, kInputs}) * 0.7 + step);
      const at::Tensor targets = inputs.mean(1, /*keepdim=*/true);

      engine.zero_gradients();
      const at::Tensor output = model.forward(inputs);  // this rank's rows
      const at::Tensor expected = fsdp::mark_sharding(targets, mesh, fsdp::batch_spec());
      // Mean over this rank's rows; gradients are averaged.
      const at::Tensor loss = at::mse_loss(output, expected);
      loss.backward();
      fsdp::clip_grad_norm(engine, /*max_norm=*/1.0);
      optimizer->step(fsdp::shard_gradients(engine), update.lr);

      const double mean = at::mse_loss(fsdp::full_tensor(output, mesh), targets).item<double>();
      if (world->rank() == 0) std::printf("step %2d loss %.6f\n", static_cast<int>(step), mean);
    }
    return 0;
  });
}
