// Optimizers over shards against the same over whole parameters, however these are cut (muon: muon_test.cpp).

#include <gtest/gtest.h>

#include "support/optimizer_over_shards.h"

namespace fsdp::train {
namespace {

using testing::Cut;
using testing::Tensors;
using testing::trained;

struct Setting {
  std::string name;
  bool by_tensor = false;  ///< sums over tensors, whose last bits depend on the cuts
};

class OverShards : public ::testing::TestWithParam<Setting> {};

TEST_P(OverShards, AnOptimizerGivesWhatItGivesOverWholeParameters) {
  optim::OptimizerOptions options;
  options.name = GetParam().name.substr(0, GetParam().name.find('_'));
  if (options.name != GetParam().name) options.beta1 = 0.9;
  options.weight_decay = 0.1;
  options.no_decay = {"*norm*"};
  const Tensors whole = trained({"alone", 1}, options, 10);
  for (const Cut& cut :
       {Cut{"two_ranks", 2}, Cut{"three_ranks", 3}, Cut{"four_ranks", 4}, Cut{"no_shard", 3, "no_shard"},
        Cut{"per_parameter", 3, "full_shard", "per_parameter"}, Cut{"hybrid", 4, "hybrid_shard", "flat", 2},
        Cut{"hybrid_per_parameter", 4, "hybrid_shard", "per_parameter", 2},
        Cut{.name = "global",
        .world_size = 4,
        .strategy = "hybrid_shard",
        .dcn = 2,
        .hybrid_optimizer = "global"},
        Cut{.name = "global_per_parameter",
        .world_size = 4,
        .strategy = "hybrid_shard",
        .layout = "per_parameter",
        .dcn = 4,
        .hybrid_optimizer = "global"},
        Cut{"wrapped", 4, "full_shard", "flat", 2, testing::blocks_in_other_groups()},
        Cut{"wrapped_per_parameter", 4, "full_shard", "per_parameter", 2,
            testing::blocks_in_other_groups()}}) {
    const Tensors found = trained(cut, options, 10);
    ASSERT_EQ(found.size(), whole.size());
    for (const auto& [name, weight] : found) {
      const double difference = (weight - whole.at(name)).abs().max().item<double>();
      EXPECT_LE(difference, GetParam().by_tensor ? 1e-6 : 0) << cut.name << " " << name;
      EXPECT_TRUE(weight.isfinite().all().item<bool>()) << cut.name << " " << name;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, OverShards,
                         ::testing::Values(Setting{"adamw"}, Setting{"adagrad"}, Setting{"adadelta"},
                                           Setting{"adamax"}, Setting{"lamb", true},
                                           Setting{"adafactor", true}, Setting{"adafactor_with_beta1", true}),
                         [](const auto& info) { return info.param.name; });

class SixteenBitsOverShards : public ::testing::TestWithParam<std::tuple<Setting, const char*>> {};

TEST_P(SixteenBitsOverShards, TheBitsAreTheSameHoweverTheModelIsCut) {
  const auto& [setting, storage] = GetParam();
  optim::OptimizerOptions options;
  options.name = setting.name;
  options.momentum = setting.name == "muon" || setting.name == "sgd" ? 0.95 : 0;
  options.weight_decay = 0.1;
  options.no_decay = {"*norm*"};
  options.rounding_seed = 5;
  const Tensors whole = trained({.name = "alone", .world_size = 1, .storage = storage}, options, 10);
  const Tensors masters = trained({.name = "alone", .world_size = 1}, options, 10);
  for (const Cut& cut :
       {Cut{.name = "two_ranks", .world_size = 2, .storage = storage},
        Cut{.name = "three_ranks", .world_size = 3, .storage = storage},
        Cut{.name = "four_ranks", .world_size = 4, .storage = storage},
        Cut{.name = "many_units", .world_size = 3, .storage = storage, .min_num_params = 1},
        Cut{.name = "one_unit", .world_size = 2, .storage = storage, .min_num_params = 1'000'000},
        Cut{.name = "no_shard", .world_size = 3, .strategy = "no_shard", .storage = storage},
        Cut{.name = "per_parameter", .world_size = 3, .layout = "per_parameter", .storage = storage},
        Cut{.name = "hybrid", .world_size = 4, .strategy = "hybrid_shard", .dcn = 2, .storage = storage},
        Cut{.name = "global",
        .world_size = 4,
        .strategy = "hybrid_shard",
        .dcn = 2,
        .storage = storage,
        .hybrid_optimizer = "global"},
        Cut{.name = "hybrid_per_parameter",
        .world_size = 4,
        .strategy = "hybrid_shard",
        .layout = "per_parameter",
        .dcn = 2,
        .storage = storage}}) {
    const Tensors found = trained(cut, options, 10);
    ASSERT_EQ(found.size(), whole.size());
    int64_t numel = 0, different = 0;
    for (const auto& [name, weight] : found) {
      ASSERT_EQ(weight.scalar_type(), std::string(storage) == "float16" ? at::kHalf : at::kBFloat16) << name;
      numel += weight.numel();
      different += weight.ne(whole.at(name)).sum().item<int64_t>();
      const at::Tensor wide = weight.to(at::kFloat);
      EXPECT_TRUE(at::allclose(wide, masters.at(name), 0.1, 0.1)) << cut.name << " " << name;
    }
    // The last bits of sums over tensors depend on the cut and may tip an element to its other neighbour.
    EXPECT_LE(different, setting.by_tensor ? numel / 100 : 0) << cut.name << " of " << numel;
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, SixteenBitsOverShards,
    ::testing::Combine(::testing::Values(Setting{"adamw"}, Setting{"adam"}, Setting{"sgd"}, Setting{"lion"},
                                         Setting{"adagrad"}, Setting{"adadelta"}, Setting{"adamax"},
                                         Setting{"muon"}, Setting{"lamb", true}, Setting{"adafactor", true}),
                       ::testing::Values("bfloat16", "float16")),
    [](const auto& info) { return std::get<0>(info.param).name + "_" + std::get<1>(info.param); });

}  // namespace
}  // namespace fsdp::train
