// wrapper CONFIG.toml WAY STEPS [section.key=value ...]: training steps of a rank on random tokens, with
// units put in place in one of these ways:
//
//   wrapper   spmd_fully_shard() of the model with a policy that chooses the blocks
//   by_hand   a mark on every parameter, each block sharded by a call of its own with a mark on its output,
//             then the rest
//   flat      fully_shard() with the flat layout and the same units
//
// As a rank of the group that the environment names; the first prints `step seconds loss` for each step. Not
// a test.

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/randint.h>

#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "base/util/clock.h"
#include "base/util/error.h"
#include "comm/api/launch_environment.h"
#include "comm/api/mesh.h"
#include "comm/backends/make_communicator.h"
#include "model/nn/decoder.h"
#include "model/nn/initialize.h"
#include "model/nn/loss.h"
#include "setup/config/load.h"
#include "shard/engine/fully_shard.h"
#include "shard/spmd/spmd_fully_shard.h"
#include "shard/state/grad_norm.h"
#include "state/optim/engine_shards.h"

namespace fsdp {
namespace {

constexpr uint64_t kSeed = 1;

shard::SpmdOptions spmd_options(const shard::ShardOptions& shard) {
  shard::SpmdOptions options;
  options.shard = shard;
  options.shard.layout = shard::Layout::kPerParameter;
  options.shard.wrap_stages.clear();
  return options;
}

/// Matrices are cut on their rows, and the others whole.
void mark_parameters(torch::nn::Module& model, const comm::Mesh& mesh) {
  for (const at::Tensor& parameter : model.parameters()) {
    if (parameter.dim() > 1)
      shard::mark_sharding(parameter, mesh, {{comm::MeshAxis::kDcn, comm::MeshAxis::kData}, {}});
  }
}

std::shared_ptr<shard::Engine> shard_by_hand(nn::Stage& model, const shard::ShardOptions& options,
                                             const comm::Mesh& mesh) {
  mark_parameters(model, mesh);
  for (const auto& module : model.modules(/*include_self=*/false)) {
    const auto* stage = dynamic_cast<nn::Stage*>(module.get());
    if (stage == nullptr || stage->type_name() != "block") continue;
    const auto rows = [](const at::Tensor& output, const comm::Mesh& on) {
      shard::mark_local_shard(output, on, shard::batch_spec());
    };
    shard::spmd_fully_shard(*module, mesh, rows, spmd_options(options));
  }
  return shard::spmd_fully_shard(model, mesh, {}, spmd_options(options));
}

std::shared_ptr<shard::Engine> shard_in_way(const std::string& way, nn::Stage& model,
                                            const shard::ShardOptions& options, const comm::Mesh& mesh) {
  if (way == "flat") return shard::fully_shard(model, options, mesh);
  if (way == "by_hand") return shard_by_hand(model, options, mesh);
  if (way != "wrapper") {
    fail(ErrorKind::kUsage, "expected wrapper, by_hand or flat; found ", way, "; name one of these");
  }
  shard::SpmdOptions spmd = spmd_options(options);
  spmd.auto_wrap_policy = shard::stage_type_policy(options.wrap_stages);
  return shard::spmd_fully_shard(model, mesh, {}, spmd);
}

void run(const config::Config& config, const std::string& way, int64_t steps) {
  const std::shared_ptr<comm::Communicator> world =
      comm::make_communicator(comm::read_launch_environment(), config.comm);
  const comm::Mesh mesh(config.mesh, world);
  const auto model = nn::make_decoder(config.model);
  nn::initialize_parameters(*model, config.model, kSeed);
  const auto engine = shard_in_way(way, *model, config::shard_options(config), mesh);
  const auto optimizer =
      optim::make_optimizer(config.optimizer, optim::flat_parameters(*engine, config.optimizer));
  at::Generator random = at::detail::createCPUGenerator(kSeed + static_cast<uint64_t>(world->rank()));
  for (int64_t step = 1; step <= steps; ++step) {
    const at::Tensor tokens =
        at::randint(config.model.vocab_size, {config.data.micro_batch_size, config.data.sequence_length},
                    random, at::TensorOptions().dtype(at::kLong));
    if (way != "flat") shard::mark_local_shard(tokens, mesh, shard::batch_spec());
    world->barrier({.unit = "step"});
    const auto begin = std::chrono::steady_clock::now();
    engine->zero_gradients();
    const at::Tensor loss = nn::loss_of(*model, tokens, tokens, {});
    loss.backward();
    shard::clip_grad_norm(*engine, config.training.max_grad_norm);
    optimizer->step(optim::shard_gradients(*engine), config.optimizer.lr);
    at::Tensor mean = loss.detach().reshape({1}).clone();
    world->all_reduce(mean, comm::ReduceOp::kSum, {.unit = "loss"})->wait();
    if (world->rank() == 0) {
      std::printf("%lld %.6f %.9f\n", static_cast<long long>(step), util::seconds_since(begin),
                  mean.item<double>() / world->world_size());
    }
  }
}

}  // namespace
}  // namespace fsdp

int main(int argc, char** argv) {
  return fsdp::util::run_guarded([&] {
    if (argc < 4) {
      fsdp::fail(fsdp::ErrorKind::kUsage, "usage: wrapper CONFIG.toml WAY STEPS [section.key=value ...]");
    }
    fsdp::run(fsdp::config::load_config(argv[1], std::vector<std::string>(argv + 4, argv + argc)), argv[2],
              std::stoll(argv[3]));
    return 0;
  });
}
