// Layers of libtorch that ranks compute together.

#include "model/nn/parallel_layers.h"

#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include <functional>
#include <memory>
#include <string>

#include "model/nn/parallelize.h"
#include "support/counting_communicator.h"
#include "support/parallel_models.h"

namespace fsdp::nn::shared_layers {
namespace {

using ::testing::HasSubstr;
using HookedLinear = Hooked<torch::nn::LinearImpl>;

/// x: [B, 8] -> [B, 8], with a residual, which is no part of what the ranks share.
struct GatedImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& given) {
    at::Tensor x = given.cos();
    const at::Tensor open = gate(x);
    if (changes_its_input) x.mul_(2);
    return x + down(at::silu(open) * up(x));
  }
  HookedLinear gate = register_module("gate", HookedLinear(8, 12));
  HookedLinear up = register_module("up", HookedLinear(8, 12));
  HookedLinear down = register_module("down", HookedLinear(12, 8));
  bool changes_its_input = false;
};

/// ids: [B] -> [B, 8]
template <typename Block>
struct NetImpl : torch::nn::Module {
  NetImpl() {
    const at::NoGradGuard no_grad;
    int64_t first = 0;
    for (at::Tensor parameter : parameters()) {
      parameter.copy_(at::arange(first, first + parameter.numel()).sin().mul(0.4).view_as(parameter));
      first += parameter.numel();
    }
  }
  at::Tensor forward(const at::Tensor& ids) { return block(table(ids)); }
  Hooked<torch::nn::EmbeddingImpl> table = register_module("table", Hooked<torch::nn::EmbeddingImpl>(11, 8));
  Block block = this->register_module("block", Block());
};
struct GatedHolder : torch::nn::ModuleHolder<GatedImpl> {
  using torch::nn::ModuleHolder<GatedImpl>::ModuleHolder;
  at::Tensor operator()(const at::Tensor& x) { return (*this)->forward(x); }
};
using HookedNet = NetImpl<Hooked<GatedImpl>>;
using PlainNet = NetImpl<GatedHolder>;

const ParallelPlan kPlan = {{"table", RowwiseParallel{.input = Replicate{}}},
                            {"block.gate", ColwiseParallel{}},
                            {"block.up", ColwiseParallel{}},
                            {"block.down", RowwiseParallel{}}};

template <typename Net>
size_t expect_as_whole(const ParallelPlan& plan, bool changes_its_input = false) {
  const at::Tensor ids = at::arange(10, at::kLong).remainder(7).add(3);
  const auto run = [&](Net& net) {
    net.block->changes_its_input = changes_its_input;
    net.block->gate->weight.requires_grad_(!changes_its_input);  // its backward would need the old input
    const at::Tensor loss = net.forward(ids).square().mean();
    loss.backward();
    return loss.template item<double>();
  };
  Net whole;
  const double expected = run(whole);
  const testing::Gradients gradients = testing::gradients_of(whole);
  size_t calls = 0;
  comm::run_ranks_as_threads(2, [&](comm::Communicator& inner) {
    auto group = std::make_shared<testing::CountingCommunicator>(inner);
    Net net;
    const auto parts = parallelize(net, plan, group);
    EXPECT_TRUE(is_parallel(net));
    EXPECT_NEAR(run(net), expected, 1e-6 * expected);
    const testing::Gradients found = testing::gradients_of(net);
    for (const ParameterPart& part : parts) {
      EXPECT_TRUE(at::allclose(found.at(part.name), part_of(gradients.at(part.name), part), 1e-5, 1e-7))
          << part.name;
    }
    if (inner.rank() == 0) calls = group->calls().size();
  });
  return calls;
}

TEST(LayersOfLibtorch, AreComputedByRanksTogether) {
  // The table's sum, the sum of down, and the gradient of what gate and up take.
  EXPECT_EQ(expect_as_whole<HookedNet>(kPlan), 3U);
}

TEST(LayersOfLibtorch, EnterOneByOneWhereTheModuleAroundThemHasNoHooks) {
  EXPECT_EQ(expect_as_whole<PlainNet>(kPlan), 4U);
}

TEST(LayersOfLibtorch, EnterAgainWithAnInputThatHasChanged) {
  EXPECT_EQ(expect_as_whole<HookedNet>(kPlan, /*changes_its_input=*/true), 4U);
}

TEST(LayersOfLibtorch, OfRowsTakeTheirPartOfAWholeInput) {
  expect_as_whole<HookedNet>({{"block.down", RowwiseParallel{.input = Replicate{}}}});
  expect_as_whole<HookedNet>({{"block.up", ColwiseParallel{.output = Replicate{}}},
                              {"block.gate", ColwiseParallel{.output = Replicate{}}}});
}

std::string refusal(const std::function<void()>& body) {
  try {
    body();
    return "";
  } catch (const util::Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    return error.what();
  }
}

TEST(LayersOfLibtorch, MustBeHooked) {
  struct Net : torch::nn::Module {
    torch::nn::Linear plain = register_module("plain", torch::nn::Linear(8, 8));
    Hooked<torch::nn::EmbeddingImpl> padded = register_module(
        "padded", Hooked<torch::nn::EmbeddingImpl>(torch::nn::EmbeddingOptions(8, 8).padding_idx(0)));
  } net;
  EXPECT_THAT(refusal([&] {
                parameter_parts(net, {{"plain", ColwiseParallel{.output = Replicate{}}}}, 2, 0);
              }),
              HasSubstr("plain: expected a layer whose calls can be hooked; found a plain "
                        "torch::nn::LinearImpl; declare it as fsdp::Hooked<torch::nn::LinearImpl>"));
  EXPECT_THAT(
      refusal([&] {
        parameter_parts(net, {{"padded", RowwiseParallel{.input = Replicate{}}}}, 2, 0);
      }),
      HasSubstr("padded: expected an embedding whose rows do not depend on the others; found one with "
                "padding_idx"));
}

TEST(LayersOfLibtorch, SayWhichPartTheyExpect) {
  comm::run_ranks_as_threads(2, [&](comm::Communicator& inner) {
    auto group = std::make_shared<testing::CountingCommunicator>(inner);
    HookedNet net;
    parallelize(net, kPlan, group);
    EXPECT_THAT(
        refusal([&] {
          net.block->down(at::zeros({2, 12}));
        }),
        HasSubstr("block.down: expected a last dimension of 6 (12 features over 2 ranks: each has a part); "
                  "found 12 in [2, 12]"));
    EXPECT_THAT(
        refusal([&] {
          net.block->up(at::zeros({2, 4}));
        }),
        HasSubstr("block.up: expected a last dimension of 8 (each rank needs all features); found 4"));
  });
}

}  // namespace
}  // namespace fsdp::nn::shared_layers
