// Muon over shards: bit for bit what it is over whole parameters, however these are cut.

#include "state/optim/muon.h"

#include <gtest/gtest.h>

#include "support/optimizer_over_shards.h"

namespace fsdp::train {
namespace {

using testing::Cut;
using testing::Tensors;
using testing::trained;

optim::OptimizerOptions muon_options() {
  optim::OptimizerOptions options;
  options.name = "muon";
  options.momentum = 0.95;
  options.nesterov = true;
  options.no_decay = {"*norm*"};
  return options;
}

class MuonOverShards : public ::testing::TestWithParam<Cut> {};

TEST_P(MuonOverShards, GivesBitForBitWhatItGivesOverWholeParameters) {
  const Tensors whole = trained({"alone", 1}, muon_options()), found = trained(GetParam(), muon_options());
  ASSERT_EQ(found.size(), whole.size());
  for (const auto& [name, weight] : found) EXPECT_TRUE(at::equal(weight, whole.at(name))) << name;
}

INSTANTIATE_TEST_SUITE_P(
    All, MuonOverShards,
    ::testing::Values(Cut{"two_ranks", 2}, Cut{"three_ranks", 3}, Cut{"eight_ranks", 8},
                      Cut{"zero2", 2, "shard_grad_op"}, Cut{"no_shard", 3, "no_shard"},
                      Cut{"per_parameter", 3, "full_shard", "per_parameter"},
                      Cut{"wrapped", 4, "full_shard", "flat", 2, testing::blocks_in_other_groups()},
                      Cut{"hybrid", 4, "hybrid_shard", "flat", 2},
                      Cut{"hybrid_per_parameter", 4, "hybrid_shard", "per_parameter", 2}),
    [](const auto& info) { return info.param.name; });

TEST(Muon, LeavesAllButMatricesOfHiddenLayersToAdamW) {
  optim::OptimizerOptions adamw = muon_options();
  adamw.name = "adamw";
  const Cut cut{"two_ranks", 2};
  const Tensors found = trained(cut, muon_options()), expected = trained(cut, adamw);
  size_t matrices = 0;
  for (const auto& [name, weight] : found) {
    const bool matrix = optim::treatment_of(muon_options(), name, weight.sizes().vec()).matrix;
    matrices += matrix ? 1 : 0;
    EXPECT_EQ(at::equal(weight, expected.at(name)), !matrix) << name;
  }
  EXPECT_EQ(matrices, 3u * 7) << "of each block";
}

}  // namespace
}  // namespace fsdp::train
