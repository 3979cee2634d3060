// Shards modules one by one, trains them by an optimizer of torch::optim, and reads weights between steps.

#include <fsdp/fsdp.h>
#include <torch/torch.h>

#include <cstdio>

/// x: [B, 32] -> the same
struct BlockImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) { return x + at::gelu(linear(x)); }
  torch::nn::Linear linear = register_module("linear", torch::nn::Linear(32, 32));
};
/// x: [B, 32] -> [B, 1]
struct TowerImpl : torch::nn::Module {
  at::Tensor forward(at::Tensor x) {
    for (auto& block : blocks) x = block(x);
    return head(x);
  }
  std::vector<fsdp::Hooked<BlockImpl>> blocks = {register_module("0", fsdp::Hooked<BlockImpl>()),
                                                 register_module("1", fsdp::Hooked<BlockImpl>())};
  torch::nn::Linear head = register_module("head", torch::nn::Linear(32, 1));
};

std::shared_ptr<fsdp::Engine> shard(fsdp::Hooked<TowerImpl>& tower,
                                    const std::shared_ptr<fsdp::Communicator>& communicator) {
  for (auto& block : tower->blocks) fsdp::fully_shard(*block, {}, communicator);
  return fsdp::fully_shard(*tower, {}, communicator);  // what is left, and the engine of all
}

double sum_of_head(fsdp::Engine& engine, fsdp::Hooked<TowerImpl>& tower) {
  const fsdp::FullParameters full(engine);  // on all ranks; {.writeback = true} to change them
  return tower->head->weight.sum().item<double>();
}

int main() {
  return fsdp::run_guarded([] {
    const auto communicator = fsdp::make_communicator(fsdp::read_launch_environment(), {});
    torch::manual_seed(1);  // the same first weights on every rank
    fsdp::Hooked<TowerImpl> tower;
    const auto engine = shard(tower, communicator);
    const double before = sum_of_head(*engine, tower);

    torch::optim::AdamW optimizer(fsdp::parameters(*engine), torch::optim::AdamWOptions(1e-2));
    const int64_t ranks = communicator->world_size(), rows = 8 / ranks;
    for (int64_t step = 0; step < 20; ++step) {
      const at::Tensor all = at::sin(at::arange(8 * 32).view({8, 32}) * 0.7 + step);
      const at::Tensor inputs = all.narrow(0, communicator->rank() * rows, rows);
      engine->zero_gradients();  // or optimizer.zero_grad()
      const at::Tensor loss = at::mse_loss(tower(inputs), inputs.mean(1, /*keepdim=*/true));
      loss.backward();
      fsdp::clip_grad_norm(*engine,
                           /*max_norm=*/1.0);  // over all ranks; torch's would include this rank's part only
      optimizer.step();

      at::Tensor sum = loss.detach().reshape({1}).clone();
      communicator->all_reduce(sum, fsdp::ReduceOp::kSum, {})->wait();
      if (communicator->rank() == 0) {
        std::printf("step %2d loss %.6f\n", static_cast<int>(step),
                    sum.item<double>() / static_cast<double>(ranks));
      }
    }
    return sum_of_head(*engine, tower) == before ? 1 : 0;
  });
}
