// The program of docs/embedding.md: trains a model, sharded over the ranks, saves it, and resumes.
//   first_program FOLDER      the folder for the checkpoints

#include <fsdp/fsdp.h>
#include <torch/torch.h>

#include <cstdio>

/// x: [B, width] -> the same
struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(int64_t width) : linear(register_module("linear", torch::nn::Linear(width, width))) {}
  at::Tensor forward(const at::Tensor& x) { return x + at::gelu(linear(x)); }
  torch::nn::Linear linear;
};
/// x: [B, 64] -> [B, 1]
struct NetImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) { return head(second(first(x))); }
  fsdp::Hooked<BlockImpl> first = register_module("first", fsdp::Hooked<BlockImpl>(64));
  fsdp::Hooked<BlockImpl> second = register_module("second", fsdp::Hooked<BlockImpl>(64));
  torch::nn::Linear head = register_module("head", torch::nn::Linear(64, 1));
};

/// Trains from step `begin`, whose checkpoint is in `folder` unless it is 0, to step `end`, and saves that.
void train(const std::shared_ptr<fsdp::Communicator>& communicator, const std::filesystem::path& folder,
           int64_t begin, int64_t end) {
  torch::manual_seed(1);  // the same first weights on every rank
  fsdp::Hooked<NetImpl> net;
  auto engine = fsdp::fully_shard(*net, {.min_num_params = 2000}, communicator);
  const fsdp::OptimizerOptions options{.name = "adamw", .lr = 1e-3};
  auto optimizer = fsdp::make_optimizer(options, fsdp::flat_parameters(*engine, options));
  auto state = [&](auto purpose) { return fsdp::state_slices(*engine, *optimizer, purpose); };
  if (begin > 0) {
    const auto from = folder / fsdp::step_folder_name(begin);
    fsdp::load_slices(from, fsdp::read_manifest(from), state(fsdp::SlicePurpose::kLoad));
    optimizer->set_step_count(begin);
  }
  const int64_t ranks = communicator->world_size(), rows = 8 / ranks;  // of a batch of 8, for each rank
  for (int64_t step = begin; step < end; ++step) {
    const at::Tensor all = at::sin(at::arange(8 * 64).view({8, 64}) * 0.7 + step);
    const at::Tensor inputs = all.narrow(0, communicator->rank() * rows, rows);
    engine->zero_gradients();
    at::Tensor loss = at::mse_loss(net(inputs), inputs.mean(1, /*keepdim=*/true));
    loss.backward();                                              // gathers, frees and reduces as it goes
    fsdp::clip_grad_norm(*engine, /*max_norm=*/1.0);              // of all ranks together
    optimizer->step(fsdp::shard_gradients(*engine), options.lr);  // on this rank's shards

    at::Tensor sum = loss.detach().reshape({1}).clone();
    communicator->all_reduce(sum, fsdp::ReduceOp::kSum, {})->wait();
    if (communicator->rank() == 0)
      std::printf("step %2d loss %.6f\n", static_cast<int>(step), sum.item<double>() / ranks);
  }
  fsdp::save_sharded({.root = folder, .step = end, .layout = "flat"}, state(fsdp::SlicePurpose::kSave),
                     *communicator);
}

int main(int argc, char** argv) {
  return fsdp::run_guarded([&] {
    const std::filesystem::path folder = argc > 1 ? argv[1] : "checkpoints/first_program";
    const auto communicator = fsdp::make_communicator(fsdp::read_launch_environment(), {});
    train(communicator, folder, 0, 10);
    train(communicator, folder, 10, 20);  // a new model, from the checkpoint
    return 0;
  });
}
