#include "state/outer/outer_optimizer.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include <fstream>
#include <sstream>
#include <vector>

#include "comm/threads/thread_communicator.h"
#include "model/nn/stage.h"
#include "shard/engine/engine.h"
#include "shard/engine/fully_shard.h"
#include "state/optim/engine_shards.h"
#include "support/sharded_run.h"
#include "support/source_folder.h"

namespace fsdp::optim {
namespace {

// What torchft_diloco.py has too.
constexpr int kReplicas = 2;
constexpr int64_t kWidth = 5, kLocalSteps = 4, kSteps = 16;

struct TwoUnits : torch::nn::Module {
  TwoUnits() {
    for (const char* unit : {"0", "1"}) {
      register_module(unit,
                      nn::Hooked<torch::nn::LinearImpl>(torch::nn::LinearOptions(kWidth, 1).bias(false)));
    }
  }
};

at::Tensor moves(int replica, int64_t step, int64_t unit) {
  const at::Tensor i = at::arange(kWidth, at::kLong);
  return (at::remainder(replica * 7 + step * 3 + unit * 5 + i * 11, 13) - 6).to(at::kFloat) / 64;
}

/// The weights of a replica after all steps, one unit after another.
at::Tensor moved_weights(const OuterOptions& options, comm::Communicator& replicas) {
  const at::NoGradGuard no_grad;
  nn::Hooked<TwoUnits> model;
  const auto engine =
      shard::fully_shard(*model, {.min_num_params = 1}, replicas.subgroup("one replica", {replicas.rank()}));
  const OptimizerOptions inner_options;
  const auto inner = make_optimizer(inner_options, flat_parameters(*engine, inner_options));
  std::vector<at::Tensor> weights;
  for (const FlatParameter& unit : inner->parameters()) {
    if (unit.tensors.empty()) continue;
    weights.push_back(unit.value.narrow(0, 0, kWidth));
    weights.back().copy_(at::arange(kWidth, at::kFloat) / 8 - static_cast<double>(weights.size() - 1));
  }
  OuterOptimizer outer(options, kLocalSteps, *engine, *inner, testing::borrowed(replicas));
  outer.begin();
  // An exchange of torchft's ends at a multiple of the local steps; ours begins there.
  for (int64_t step = 1 - options.fragment_delay; step <= kSteps; ++step) {
    for (size_t unit = 0; step > 0 && unit < weights.size(); ++unit) {
      weights[unit].add_(moves(replicas.rank(), step, static_cast<int64_t>(unit)));
    }
    outer.after_step(step + options.fragment_delay, /*is_last=*/false);
  }
  return at::cat(weights);
}

// torchft_diloco.py has the weights of torchft's DiLoCo after the same steps.
TEST(OuterOptimizer, IsTorchftsDiLoCo) {
  std::ifstream file(testing::source_folder() + "/tests/state/outer/torchft_diloco.txt");
  int64_t lines = 0;
  for (std::string line; std::getline(file, line); ++lines) {
    std::istringstream words(line);
    OuterOptions options{.lr = 0.7};
    int nesterov = 0, replica = 0;
    words >> options.fragments >> options.fragment_delay >> options.mixing >> options.momentum >> nesterov >>
        replica;
    options.name = nesterov != 0 ? OuterRule::kNesterov : OuterRule::kSgd;
    std::vector<float> values(2 * kWidth);
    for (float& value : values) words >> value;
    ASSERT_TRUE(words) << line;
    comm::run_ranks_as_threads(kReplicas, [&](comm::Communicator& communicator) {
      const at::Tensor found = moved_weights(options, communicator);
      if (communicator.rank() != replica) return;
      EXPECT_TRUE(at::allclose(found, at::tensor(values), 1e-5, 1e-6)) << line << "\n" << found;
    });
  }
  EXPECT_EQ(lines, 14);
}

}  // namespace
}  // namespace fsdp::optim
