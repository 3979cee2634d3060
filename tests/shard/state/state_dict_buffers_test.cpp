// Buffers of models in state dicts.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>

#include "model/nn/buffers.h"
#include "shard/engine/rank_checks.h"
#include "shard/state/state_dict.h"
#include "shard/state_dict_fixtures.h"
#include "support/layout_under_test.h"
#include "support/log_lines.h"
#include "support/sharded_run.h"

namespace fsdp::shard {
namespace {

using testing::borrowed;
using testing::by_name;
using testing::nested_options;
using testing::refusal_of_load;

/// Batch normalization, whose running statistics each rank updates from its own rows, and a table that is not
/// part of the state.
struct StatisticsImpl : torch::nn::Module, nn::ComputedBuffers {
  StatisticsImpl() {
    linear = register_module("linear", torch::nn::Linear(3, 4));
    norm = register_module("norm", torch::nn::BatchNorm1d(4));
    register_buffer("table", at::arange(4, at::kFloat));
  }
  at::Tensor forward(const at::Tensor& x) { return norm(linear(x)); }
  torch::nn::Linear linear{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
};
using Statistics = nn::Hooked<StatisticsImpl>;

/// The state of `from` after a forward on the rank's own rows, or on those of all ranks.
void run_forward(Statistics& model, int row) {
  at::NoGradGuard no_grad;
  model(at::arange(6, at::kFloat).view({2, 3}).add(static_cast<float>(row)).sin());
}

struct TransposedImpl : torch::nn::Module {
  TransposedImpl() {
    linear = register_module("linear", torch::nn::Linear(3, 4));
    register_buffer("table", at::arange(6, at::kFloat).view({2, 3}).t());
  }
  at::Tensor forward(const at::Tensor& x) { return linear(x); }
  torch::nn::Linear linear{nullptr};
};

TEST(StateDictBuffers, MayLieInAnyOrder) {
  nn::Hooked<TransposedImpl> model;
  auto engine =
      testing::shard_under_test(*model, nested_options(), std::make_shared<comm::SingleCommunicator>());
  EXPECT_TRUE(engine->buffers().front().tensor.is_contiguous());
  const ShardedStateDict state = sharded_state_dict(*engine);
  EXPECT_TRUE(at::equal(state.back().data.view({3, 2}), at::arange(6, at::kFloat).view({2, 3}).t()));
}

TEST(StateDictBuffers, AreThoseOfTheModelWithoutThoseThatItComputes) {
  const std::vector<std::string> expected = {"norm.running_mean", "norm.running_var",
                                             "norm.num_batches_tracked"};
  comm::run_ranks_as_threads(2, [&](comm::Communicator& communicator) {
    Statistics from, to;
    auto engine = testing::shard_under_test(*from, nested_options(), borrowed(communicator));
    auto other = testing::shard_under_test(*to, nested_options(), borrowed(communicator));
    run_forward(from, /*row=*/0);

    const auto full = by_name(full_state_dict(*engine));
    EXPECT_EQ(full.size(), 4 + expected.size());
    EXPECT_EQ(full.at("norm.num_batches_tracked").item<int64_t>(), 1);
    EXPECT_FALSE(full.at("norm.running_mean").is_same(from->norm->running_mean));
    EXPECT_FALSE(at::equal(full.at("norm.running_mean"), to->norm->running_mean));

    const auto expect_loaded = [&](const char* how) {
      EXPECT_TRUE(at::equal(to->norm->running_mean, from->norm->running_mean)) << how;
      EXPECT_TRUE(at::equal(to->norm->running_var, from->norm->running_var)) << how;
      EXPECT_EQ(to->norm->num_batches_tracked.item<int64_t>(), 1) << how;
      to->norm->reset_running_stats();
    };
    load_full_state_dict(*other, full_state_dict(*engine));
    expect_loaded("full");
    load_sharded_state_dict(*other, sharded_state_dict(*engine));
    expect_loaded("sharded");
    load_local_state_dict(*other, local_state_dict(*engine));
    expect_loaded("local");

    FullStateDict lacking = full_state_dict(*engine), wrong = lacking;
    std::erase_if(lacking, [](const NamedTensor& each) { return each.name == "norm.running_var"; });
    EXPECT_THAT(refusal_of_load([&] { load_full_state_dict(*other, lacking); }),
                ::testing::HasSubstr("missing norm.running_var"));
    for (NamedTensor& each : wrong) {
      if (each.name == "norm.num_batches_tracked") each.tensor = at::zeros({}, at::kFloat);
    }
    EXPECT_THAT(refusal_of_load([&] { load_full_state_dict(*other, wrong); }),
                ::testing::HasSubstr("misshapen norm.num_batches_tracked"));
  });
}

TEST(StateDictBuffers, ThatDifferBetweenRanksAreNamed) {
  const std::string warnings = testing::log_lines([&] {
    comm::run_ranks_as_threads(2, [&](comm::Communicator& communicator) {
      Statistics model;
      auto engine = testing::shard_under_test(*model, nested_options(), borrowed(communicator));
      EXPECT_TRUE(unequal_buffers(*engine).empty());
      full_state_dict(*engine);
      run_forward(model, communicator.rank());
      EXPECT_EQ(unequal_buffers(*engine),
                (std::vector<std::string>{"norm.running_mean", "norm.running_var"}));
      full_state_dict(*engine);
    });
  });
  EXPECT_EQ(std::count(warnings.begin(), warnings.end(), '\n'), 1) << warnings;
  EXPECT_THAT(warnings, ::testing::HasSubstr("rank 0 are used for buffers that differ between ranks: "
                                             "norm.running_mean, norm.running_var"));
}

}  // namespace
}  // namespace fsdp::shard
