// fully_shard() on modules of libtorch that are not stages: several inputs and outputs, structs, buffers,
// modules that run twice or not at all.

#include <gtest/gtest.h>
#include <torch/nn/modules.h>

#include <mutex>

#include "base/util/error.h"
#include "comm/threads/thread_communicator.h"
#include "model/nn/stage.h"
#include "shard/engine/fully_shard.h"
#include "shard/state/full_parameters.h"
#include "state/optim/optimizer.h"
#include "support/forwarding_communicator.h"

namespace fsdp::shard {
namespace {

using nn::Hooked;
using nn::SequentialHooked;

/// The output of a mixer.
struct Mixed {
  at::Tensor sum;
  std::vector<at::Tensor> parts;
  std::map<std::string, at::Tensor> by_name;
  std::string note;

  template <typename Visit>
  void visit_tensors(Visit&& visit) {
    visit(sum);
    visit(parts);
    visit(by_name);
  }
};

/// Keyword-like arguments.
struct MixOptions {
  at::Tensor scale;
  double power = 1;

  template <typename Visit>
  void visit_tensors(Visit&& visit) {
    visit(scale);
  }
};

struct MixerImpl : torch::nn::Module {
  explicit MixerImpl(int64_t width) {
    left = register_module("left", torch::nn::Linear(width, width));
    right = register_module("right", torch::nn::Linear(width, width));
    calls = register_buffer("calls", at::zeros({1}));
  }
  Mixed forward(const std::pair<at::Tensor, at::Tensor>& both, const std::optional<at::Tensor>& bias,
                const MixOptions& options = {}) {
    calls.add_(1);
    const at::Tensor a = left(both.first), b = right(both.second) * options.power;
    const at::Tensor sum = (bias ? a + b + *bias : a + b);
    return {options.scale.defined() ? sum * options.scale : sum, {a.tanh(), b.tanh()}, {{"a", a}}, "mixed"};
  }
  torch::nn::Linear left{nullptr}, right{nullptr};
  at::Tensor calls;
};

/// Inputs: x [n, 4], ids [n]. Runs one mixer twice, another only on request, and a sequence.
struct NetImpl : torch::nn::Module {
  NetImpl() {
    table = register_module("table", Hooked<torch::nn::EmbeddingImpl>(7, 4));
    twice = register_module("twice", Hooked<MixerImpl>(4));
    sometimes = register_module("sometimes", Hooked<MixerImpl>(4));
    sequence = register_module(
        "sequence", torch::nn::Sequential(SequentialHooked<torch::nn::LinearImpl>(4, 8), torch::nn::GELU(),
                                          SequentialHooked<torch::nn::LinearImpl>(8, 4)));
    recurrent = register_module("recurrent",
                                Hooked<torch::nn::GRUImpl>(torch::nn::GRUOptions(4, 4).batch_first(true)));
    head = register_module("head", torch::nn::Linear(4, 3));
  }
  std::tuple<at::Tensor, at::Tensor> forward(const at::Tensor& x, const at::Tensor& ids) {
    const at::Tensor embedded = table(ids);
    const Mixed first = twice(std::pair(x, embedded), std::nullopt);
    const Mixed second = twice(std::pair(first.sum, first.parts[1]), std::optional(embedded),
                               MixOptions{.scale = first.by_name.at("a"), .power = 0.5});
    at::Tensor y = second.sum + second.parts[0];
    if (uses_sometimes) y = y + sometimes(std::pair(y, embedded), std::nullopt).parts[0];
    y = sequence->forward(y);
    const auto [all, last] = recurrent(y.unsqueeze(0));
    return {head(all.squeeze(0)), last};
  }
  Hooked<torch::nn::EmbeddingImpl> table{nullptr};
  Hooked<MixerImpl> twice{nullptr}, sometimes{nullptr};
  torch::nn::Sequential sequence{nullptr};
  Hooked<torch::nn::GRUImpl> recurrent{nullptr};
  torch::nn::Linear head{nullptr};
  bool uses_sometimes = true;
};

using Net = Hooked<NetImpl>;

Net make_net() {
  static std::mutex mutex;  // ranks are threads, which share libtorch's generator
  const std::lock_guard lock(mutex);
  torch::manual_seed(3);
  Net net;
  return net;
}

at::Tensor loss_of(Net& net, int64_t row, int64_t step) {
  const at::Tensor x =
      (at::arange(8).view({2, 4}).to(at::kFloat) * 0.3f + static_cast<float>(row + step)).sin();
  const at::Tensor ids = (at::arange(2) + row + 2 * step) % 7;
  const auto [scores, state] = net(x, ids);
  return scores.square().mean() + state.sum();
}

constexpr int64_t kRows = 4, kSteps = 3;

/// Weights after some steps of SGD on all rows, computed by one process without sharding.
std::map<std::string, at::Tensor> expected_weights(const std::function<bool(int64_t)>& uses_sometimes) {
  Net net = make_net();
  for (int64_t step = 0; step < kSteps; ++step) {
    net->uses_sometimes = uses_sometimes(step);
    net->zero_grad();
    for (int64_t row = 0; row < kRows; ++row) (loss_of(net, row, step) / kRows).backward();
    at::NoGradGuard no_grad;
    for (auto& parameter : net->parameters()) {
      if (parameter.grad().defined()) parameter.sub_(parameter.grad(), 0.1);
    }
  }
  std::map<std::string, at::Tensor> weights;
  for (const auto& parameter : net->named_parameters()) weights[parameter.key()] = parameter.value().detach();
  return weights;
}

void expect_training_is_alike(
    int world_size, ShardOptions options,
    const std::function<bool(int64_t)>& uses_sometimes = [](int64_t) { return true; }) {
  const auto expected = expected_weights(uses_sometimes);
  options.min_num_params = 1;
  comm::run_ranks_as_threads(world_size, [&](comm::Communicator& communicator) {
    Net net = make_net();
    auto engine = fully_shard(*net, options, testing::borrowed(communicator));
    EXPECT_GE(engine->units().size(), 6u);
    for (int64_t step = 0; step < kSteps; ++step) {
      net->uses_sometimes = uses_sometimes(step);
      engine->zero_gradients();
      const int64_t rows = kRows / communicator.world_size();
      at::Tensor loss;
      for (int64_t i = 0; i < rows; ++i) {
        const at::Tensor row = loss_of(net, communicator.rank() * rows + i, step) / rows;
        loss = i == 0 ? row : loss + row;
      }
      loss.backward();
      EXPECT_EQ(engine->live_unsharded_bytes(), 0);
      at::NoGradGuard no_grad;
      for (const auto& unit : engine->units()) {
        const at::Tensor& gradient = unit->storage().shard_gradient();
        if (gradient.defined()) unit->storage().shard().sub_(gradient, 0.1);
      }
    }
    const FullParameters full(*engine);
    for (const auto& parameter : net->named_parameters()) {
      EXPECT_TRUE(at::allclose(parameter.value(), expected.at(parameter.key()), 1e-5, 1e-6))
          << parameter.key();
    }
  });
}

TEST(AnyModule, TrainsAsOneProcessDoes) {
  for (int world_size : {1, 2, 4}) expect_training_is_alike(world_size, {});
}

TEST(AnyModule, TrainsAlikeWithEveryStrategyAndLayout) {
  ShardOptions options;
  for (const char* strategy : {"shard_grad_op", "no_shard"}) {
    options.strategy = strategy;
    expect_training_is_alike(2, options);
  }
  options.strategy = "full_shard";
  options.layout = "per_parameter";
  expect_training_is_alike(2, options);
  options.forward_prefetch = "none";
  options.backward_prefetch = "post";
  options.reshard_root_after_forward = options.reshard_last_after_forward = true;
  expect_training_is_alike(2, options);
}

TEST(AnyModule, MayRunInSomePassesOnly) {
  expect_training_is_alike(2, {}, [](int64_t step) { return step != 1; });
  expect_training_is_alike(2, {}, [](int64_t step) { return step == 1; });
}

TEST(AnyModule, KeepsTheNamesOfParameters) {
  Net hooked = make_net();
  NetImpl plain;
  std::vector<std::string> names, expected;
  for (const auto& parameter : hooked->named_parameters()) names.push_back(parameter.key());
  for (const auto& parameter : plain.named_parameters()) expected.push_back(parameter.key());
  EXPECT_EQ(names, expected);
}

TEST(AnyModule, ForwardsMembersAndIndices) {
  Hooked<torch::nn::SequentialImpl> sequence(torch::nn::Linear(2, 3), torch::nn::Linear(3, 4));
  EXPECT_EQ(sequence->size(), 2u);
  EXPECT_EQ(sequence[1], sequence->ptr(1));
  const auto plain = std::make_shared<torch::nn::SequentialImpl>(torch::nn::Linear(2, 3));
  nn::StageAdaptor<torch::nn::SequentialImpl> adaptor(plain);
  EXPECT_EQ(adaptor->size(), 1u);
  EXPECT_EQ(adaptor[0], plain->ptr(0));
  EXPECT_EQ(adaptor.module(), plain);
}

TEST(AnyModule, IsNamedAfterItsType) {
  EXPECT_EQ(make_net()->type_name(), "Net");
  EXPECT_EQ(Hooked<torch::nn::GRUImpl>(torch::nn::GRUOptions(2, 2))->type_name(), "GRU");
  EXPECT_EQ(Hooked<torch::nn::BatchNorm1dImpl>(2)->type_name(), "BatchNorm1d");
}

TEST(AnyModule, BecomesAUnitByItsType) {
  comm::run_ranks_as_threads(2, [](comm::Communicator& communicator) {
    Net net = make_net();
    ShardOptions options;
    options.min_num_params = 1 << 20;
    options.wrap_stages = {"Mixer"};
    auto engine = fully_shard(*net, options, testing::borrowed(communicator));
    std::vector<std::string> names;
    for (const auto& unit : engine->units()) names.push_back(unit->name());
    EXPECT_EQ(names, (std::vector<std::string>{"root", "twice", "sometimes"}));
  });
}

TEST(AnyModule, ThatHooksCannotSeeIsRefusedAsTheRoot) {
  comm::run_ranks_as_threads(1, [](comm::Communicator& communicator) {
    torch::nn::Linear plain(2, 2);
    try {
      fully_shard(*plain, {}, testing::borrowed(communicator));
      FAIL();
    } catch (const util::Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUsage);
      EXPECT_NE(std::string(error.what()).find("Hooked<"), std::string::npos) << error.what();
    }
  });
}

}  // namespace
}  // namespace fsdp::shard
