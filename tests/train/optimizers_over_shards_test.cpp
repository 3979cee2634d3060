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

}  // namespace
}  // namespace fsdp::train
