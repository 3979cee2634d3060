// Sharded models in regions of autocast: as the unsharded model in the same region.

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <optional>

#include "model/nn/recompute.h"
#include "support/autocast_region.h"
#include "support/counting_allocator.h"
#include "support/sharded_run.h"

namespace fsdp::shard::autocasting {
namespace {

using testing::AutocastRegion;
using testing::ChainStage;
using Weights = std::map<std::string, at::Tensor>;

constexpr int64_t kWidth = 8, kSteps = 4;
constexpr double kRate = 0.05;

enum class Backward { kInRegion, kOutside };

/// A model, and the loss of a rank's batch.
struct Setting {
  std::function<std::shared_ptr<nn::Stage>()> make;
  std::function<at::Tensor(nn::Stage&, int64_t step, int rank)> loss;
};

/// A chain of products, whose results are 16 bits in a region, and tanh, which keeps the type of its input.
const Setting kChain = {
    [] { return std::make_shared<ChainStage>(3, kWidth); },
    [](nn::Stage& model, int64_t step, int rank) {
      const at::Tensor x =
          at::arange(4 * kWidth).view({4, kWidth}).add(static_cast<double>(17 * step + 3 * rank)).sin();
      const at::Tensor y = model.forward(x);
      EXPECT_EQ(y.scalar_type(), at::kBFloat16);
      return y.to(at::kFloat).square().mean();
    }};

Setting decoder(const char* architecture, bool fused) {
  nn::ModelOptions options = testing::tiny_options(architecture);
  options.fused_kernels = fused;
  return {[options] { return testing::make_initialized(options); },
          [options](nn::Stage& model, int64_t step, int rank) {
            return testing::loss_of(model,
                                    testing::token_rows(8 * step + 2 * rank, 2, 8, options.vocab_size));
          }};
}

at::Tensor loss_in_region(const Setting& setting, nn::Stage& model, int64_t step, int rank) {
  const AutocastRegion region;
  return setting.loss(model, step, rank);
}

void backward(const at::Tensor& loss, Backward where) {
  std::optional<AutocastRegion> region;
  if (where == Backward::kInRegion) region.emplace();
  loss.backward();
}

/// The unsharded model on the batches of all ranks, one after another.
Weights unsharded(const Setting& setting, int world, Backward where) {
  at::set_num_threads(1);
  auto model = setting.make();
  for (int64_t step = 0; step < kSteps; ++step) {
    model->zero_grad();
    for (int rank = 0; rank < world; ++rank) backward(loss_in_region(setting, *model, step, rank), where);
    at::NoGradGuard no_grad;
    for (at::Tensor parameter : model->parameters()) parameter.sub_(parameter.grad().div(world), kRate);
  }
  Weights weights;
  for (const auto& parameter : model->named_parameters())
    weights[parameter.key()] = parameter.value().detach();
  return weights;
}

struct Way {
  ShardOptions options;
  Backward backward = Backward::kOutside;
  bool recomputes = false, recomputes_outside = false;
  bool evaluates = false;   ///< also runs a forward without autograd in the region of each step
  bool stays_open = false;  ///< one region around all steps
};

Weights sharded(const Setting& setting, int world, const Way& run) {
  Weights weights;
  comm::run_ranks_as_threads(world, [&](comm::Communicator& communicator) {
    at::set_num_threads(1);
    auto model = setting.make();
    const auto recompute = [&] { nn::checkpoint_activations(*model, {"block"}); };
    if (run.recomputes && run.recomputes_outside) recompute();
    auto engine = testing::shard_under_test(*model, run.options, testing::borrowed(communicator));
    if (run.recomputes && !run.recomputes_outside) recompute();
    const int rank = communicator.rank();
    const auto forward = [&](int64_t step) {
      if (run.evaluates) {
        at::NoGradGuard no_grad;
        setting.loss(*model, step, rank);
      }
      return setting.loss(*model, step, rank);
    };
    std::optional<AutocastRegion> region;
    if (run.stays_open) region.emplace();
    for (int64_t step = 0; step < kSteps; ++step) {
      engine->zero_gradients();
      if (run.stays_open) {
        forward(step).backward();
      } else {
        at::Tensor loss;
        {
          const AutocastRegion of_step;
          loss = forward(step);
        }
        backward(loss, run.backward);
      }
      testing::sgd_on_shards(*engine, kRate);
    }
    region.reset();
    for (auto& [name, weight] : full_state_dict(*engine, {.rank0_only = true})) weights[name] = weight;
  });
  return weights;
}

void expect_same(const Weights& found, const Weights& expected, const std::string& what) {
  ASSERT_EQ(found.size(), expected.size());
  for (const auto& [name, weight] : expected) {
    EXPECT_LE((found.at(name) - weight).abs().max().item<double>(), 1e-6) << what << ", " << name;
  }
}

ShardOptions every_matrix() {
  ShardOptions options;
  options.min_num_params = 1;
  return options;
}

TEST(ShardedAutocast, TrainsAsTheUnshardedModelInTheSameRegion) {
  for (const Backward where : {Backward::kInRegion, Backward::kOutside}) {
    for (int world : {1, 2, 3}) {
      const Weights expected = unsharded(kChain, world, where);
      for (const char* strategy : {"full_shard", "shard_grad_op", "no_shard"}) {
        for (const char* prefetch : {"none", "implicit"}) {
          for (int recompute : {0, 1, 2}) {
            Way run{.options = every_matrix(), .backward = where};
            run.options.strategy = strategy;
            run.options.forward_prefetch = prefetch;
            if (std::string(prefetch) == "none") run.options.backward_prefetch = "none";
            run.recomputes = recompute > 0;
            run.recomputes_outside = recompute == 2;
            expect_same(sharded(kChain, world, run), expected,
                        concat(world, strategy, prefetch, recompute, where == Backward::kInRegion));
          }
        }
      }
    }
  }
}

// Nobody clears the copies of weights that libtorch would keep in it.
TEST(ShardedAutocast, ARegionMayStayOpenOverStepsAndEvaluations) {
  const Weights expected = unsharded(kChain, 2, Backward::kInRegion);
  for (const char* strategy : {"full_shard", "no_shard"}) {
    for (bool recomputes : {false, true}) {
      Way run{.options = every_matrix(), .recomputes = recomputes, .evaluates = true, .stays_open = true};
      run.options.strategy = strategy;
      expect_same(sharded(kChain, 2, run), expected, concat(strategy, recomputes));
    }
  }
}

TEST(ShardedAutocast, InputsOfUnitsKeepTheirTypeInRegionsOnly) {
  comm::run_ranks_as_threads(2, [](comm::Communicator& communicator) {
    ChainStage chain(2, kWidth);
    const auto engine = testing::shard_under_test(chain, every_matrix(), testing::borrowed(communicator));
    std::vector<at::ScalarType> types;
    chain.layer(1).probe = [&](const at::Tensor& x) { types.push_back(x.scalar_type()); };
    at::NoGradGuard no_grad;
    {
      const AutocastRegion region;
      chain.forward(at::ones({2, kWidth}));
    }
    chain.forward(at::ones({2, kWidth}, at::kBFloat16));
    EXPECT_EQ(types, (std::vector<at::ScalarType>{at::kBFloat16, at::kFloat}));
  });
}

TEST(ShardedAutocast, DecodersTrainAsUnshardedOnes) {
  for (const char* architecture : {"llama", "gpt2"}) {
    for (bool fused : {true, false}) {
      const Setting setting = decoder(architecture, fused);
      const Weights expected = unsharded(setting, 2, Backward::kOutside);
      for (bool recomputes : {false, true}) {
        Way run{.options = {}, .recomputes = recomputes};
        run.options.min_num_params = 500;
        expect_same(sharded(setting, 2, run), expected, concat(architecture, fused, recomputes));
      }
    }
  }
}

TEST(ShardedAutocast, KeepsNoMemoryAfterAStep) {
  for (bool recomputes : {false, true}) {
    comm::run_ranks_as_threads(1, [&](comm::Communicator& communicator) {
      auto model = kChain.make();
      auto engine = testing::shard_under_test(*model, every_matrix(), testing::borrowed(communicator));
      if (recomputes) nn::checkpoint_activations(*model, {"block"});
      const AutocastRegion region;
      const auto step = [&] {
        kChain.loss(*model, 0, 0).backward();
        engine->zero_gradients();
      };
      step();
      const testing::CountingAllocator::Scope scope;
      for (int i = 0; i < 3; ++i) step();
      EXPECT_EQ(scope.live_bytes(), 0) << "no copy of a weight either";
    });
  }
}

}  // namespace
}  // namespace fsdp::shard::autocasting
