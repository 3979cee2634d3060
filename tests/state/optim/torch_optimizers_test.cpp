// Optimizers of torch::optim over this rank's parts of the parameters.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim.h>

#include "comm/threads/thread_communicator.h"
#include "model/nn/hooked.h"
#include "shard/engine/fully_shard.h"
#include "shard/state/grad_norm.h"
#include "shard/state/state_dict.h"
#include "state/optim/engine_shards.h"
#include "support/forwarding_communicator.h"
#include "support/on_mesh.h"
#include "support/readable.h"

namespace fsdp::optim {
namespace {

using testing::borrowed;
using ::testing::HasSubstr;
using testing::torch_error_of;
using Tensors = std::vector<at::Tensor>;

constexpr int64_t kWidth = 5, kRows = 12, kSteps = 5;

struct NetImpl : torch::nn::Module {
  NetImpl() {
    at::NoGradGuard no_grad;
    int64_t first = 0;  // the same on all ranks, which as threads would draw from one generator
    for (at::Tensor parameter : parameters()) {
      parameter.copy_(at::arange(first, first + parameter.numel()).sin().div(2).view_as(parameter));
      first += parameter.numel();
    }
  }
  at::Tensor forward(const at::Tensor& x) { return last(at::gelu(first(x))); }
  nn::Hooked<torch::nn::LinearImpl> first =
      register_module("first", nn::Hooked<torch::nn::LinearImpl>(kWidth, 7));
  torch::nn::Linear last = register_module("last", torch::nn::Linear(7, 1));
};
using Net = nn::Hooked<NetImpl>;

at::Tensor rows_of(int64_t step, int rank, int ranks) {
  const at::Tensor all =
      at::arange(kRows * kWidth, at::kFloat).mul(0.7).add(step).sin().view({kRows, kWidth});
  return all.narrow(0, rank * kRows / ranks, kRows / ranks);
}

using MakeOptimizer = std::function<std::unique_ptr<torch::optim::Optimizer>(Tensors)>;

const std::vector<std::pair<const char*, MakeOptimizer>>& optimizers() {
  static const std::vector<std::pair<const char*, MakeOptimizer>> kAll = {
      {"SGD",
       [](Tensors parameters) {
         return std::make_unique<torch::optim::SGD>(
             std::move(parameters), torch::optim::SGDOptions(0.1).momentum(0.9).weight_decay(0.01));
       }},
      {"AdamW",
       [](Tensors parameters) {
         return std::make_unique<torch::optim::AdamW>(std::move(parameters),
                                                      torch::optim::AdamWOptions(0.01).weight_decay(0.1));
       }},
      {"RMSprop", [](Tensors parameters) {
         return std::make_unique<torch::optim::RMSprop>(std::move(parameters),
                                                        torch::optim::RMSpropOptions(0.01));
       }}};
  return kAll;
}

/// Weights after some steps of two micro-batches, with the norm clipped.
std::map<std::string, at::Tensor> trained_plain(const MakeOptimizer& make) {
  Net net;
  const auto optimizer = make(net->parameters());
  for (int64_t step = 0; step < kSteps; ++step) {
    optimizer->zero_grad();
    for (int64_t micro = 0; micro < 2; ++micro)
      net(rows_of(2 * step + micro, 0, 1)).square().mean().backward();
    torch::nn::utils::clip_grad_norm_(net->parameters(), 0.5);
    optimizer->step();
  }
  std::map<std::string, at::Tensor> weights;
  for (const auto& parameter : net->named_parameters()) weights[parameter.key()] = parameter.value().detach();
  return weights;
}

enum class Zero { kOptimizer, kOptimizerInPlace, kEngine };

void expect_same_training(int ranks, const char* layout, const MakeOptimizer& make, Zero zero) {
  const auto expected = trained_plain(make);
  comm::run_ranks_as_threads(ranks, [&](comm::Communicator& communicator) {
    Net net;
    shard::ShardOptions options;
    options.min_num_params = 1;
    options.layout = layout;
    auto engine = shard::fully_shard(*net, options, borrowed(communicator));
    const auto optimizer = make(parameters(*engine));
    for (int64_t step = 0; step < kSteps; ++step) {
      if (zero == Zero::kEngine) {
        engine->zero_gradients();
      } else {
        optimizer->zero_grad(/*set_to_none=*/zero == Zero::kOptimizer);
      }
      for (int64_t micro = 0; micro < 2; ++micro) {
        net(rows_of(2 * step + micro, communicator.rank(), ranks)).square().mean().backward();
      }
      shard::clip_grad_norm(*engine, 0.5);
      optimizer->step();
    }
    for (const auto& [name, tensor] : shard::full_state_dict(*engine)) {
      EXPECT_TRUE(at::allclose(tensor, expected.at(name), 1e-4, 1e-5)) << name << " on " << ranks << " ranks";
    }
  });
}

TEST(TorchOptimizers, TrainShardsAsTheyTrainTheWholeModel) {
  for (const auto& [name, make] : optimizers()) {
    SCOPED_TRACE(name);
    for (int ranks : {1, 2, 3}) {
      for (const char* layout : {"flat", "per_parameter"})
        expect_same_training(ranks, layout, make, Zero::kEngine);
    }
  }
}

TEST(TorchOptimizers, TheirZeroGradBeginsANewSum) {
  for (const auto& [name, make] : optimizers()) {
    SCOPED_TRACE(name);
    for (Zero zero : {Zero::kOptimizer, Zero::kOptimizerInPlace}) expect_same_training(2, "flat", make, zero);
  }
}

TEST(TorchOptimizers, AnOptimizerOfSomeParametersZeroesTheseAlone) {
  comm::run_ranks_as_threads(1, [](comm::Communicator& communicator) {
    Net net, plain;
    auto engine = shard::fully_shard(*net, {}, borrowed(communicator));
    const auto named = named_parameters(*engine);
    ASSERT_EQ(named.size(), 4u);
    EXPECT_EQ(named[0].name, "first.weight");
    torch::optim::SGD optimizer(Tensors{named[0].tensor}, torch::optim::SGDOptions(0.1));
    for (auto* model : {&net, &plain}) (*model)(rows_of(0, 0, 1)).square().mean().backward();
    optimizer.zero_grad();
    plain->first->weight.mutable_grad().reset();
    for (auto* model : {&net, &plain}) (*model)(rows_of(1, 0, 1)).square().mean().backward();
    const auto expected = plain->named_parameters();
    for (const auto& [name, tensor] : named) {
      EXPECT_TRUE(at::allclose(tensor.grad(), expected[name].grad().flatten(), 1e-5, 1e-7)) << name;
    }
  });
}

TEST(TorchOptimizers, NamesAreThoseOfTheModelWithoutFrozenParameters) {
  comm::run_ranks_as_threads(2, [](comm::Communicator& communicator) {
    Net net;
    net->first->weight.requires_grad_(false);
    auto engine = shard::fully_shard(*net, {}, borrowed(communicator));
    int64_t numel = 0;
    for (const auto& [name, tensor] : named_parameters(*engine)) {
      EXPECT_NE(name, "first.weight");
      EXPECT_TRUE(tensor.is_leaf() && tensor.requires_grad());
      numel += tensor.numel();
    }
    at::Tensor sum = at::full({1}, static_cast<double>(numel), at::kDouble);
    communicator.all_reduce(sum, comm::ReduceOp::kSum, {})->wait();
    EXPECT_EQ(sum.item<double>(), 7 + 7 + 1);
  });
}

TEST(TorchOptimizers, OverTheModulesParametersAreToldWhereTheGradientsAre) {
  for (int ranks : {1, 2}) {
    comm::run_ranks_as_threads(ranks, [&](comm::Communicator& communicator) {
      Net net;
      auto engine = shard::fully_shard(*net, {}, borrowed(communicator));
      torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.5));
      optimizer.zero_grad();
      net(rows_of(0, communicator.rank(), ranks)).square().mean().backward();
      EXPECT_THAT(torch_error_of([&] { torch::nn::utils::clip_grad_norm_(net->parameters(), 1.0); }),
                  HasSubstr("fsdp::clip_grad_norm(engine, max_norm)"));
      EXPECT_THAT(torch_error_of([&] { optimizer.step(); }), HasSubstr("fsdp::parameters(engine)"));
    });
  }
}

TEST(TorchOptimizers, RefuseShardsInSixteenBits) {
  comm::run_ranks_as_threads(2, [](comm::Communicator& communicator) {
    Net net;
    shard::ShardOptions options;
    options.param_storage = options.mixed_precision.param_dtype = "bfloat16";
    auto engine = shard::fully_shard(*net, options, borrowed(communicator));
    EXPECT_THAT(testing::refusal_of([&] { parameters(*engine); }).text,
                HasSubstr("fsdp::parameters(): expected shards in float32; found BFloat16 in unit root"));
  });
}

}  // namespace
}  // namespace fsdp::optim
