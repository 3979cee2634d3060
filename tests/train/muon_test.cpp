// Muon over shards: bit for bit what it is over whole parameters, however these are cut.

#include "optim/muon.h"

#include <gtest/gtest.h>

#include <map>

#include "optim/engine_shards.h"
#include "shard/fully_shard.h"
#include "shard/layout_views.h"
#include "support/sharded_run.h"
#include "util/seeded_random.h"

namespace fsdp::train {
namespace {

struct Cut {
  const char* name;
  int world_size;
  const char* strategy = "full_shard";
  const char* layout = "flat";
  int dcn = 1;
};

void PrintTo(const Cut& cut, std::ostream* out) { *out << cut.name; }

optim::OptimizerOptions muon_options() {
  optim::OptimizerOptions options;
  options.name = "muon";
  options.momentum = 0.95;
  options.nesterov = true;
  options.no_decay = {"*norm*"};
  return options;
}

/// The gradient of a parameter, the same however it is cut.
at::Tensor gradient_of(const shard::ParameterPlace& place, int64_t step) {
  return at::randn(place.shape, util::named_generator(static_cast<uint64_t>(step), place.name),
                   at::TensorOptions(at::kFloat));
}

using Tensors = std::map<std::string, at::Tensor>;

/// The weights after some steps on such gradients.
Tensors trained(const Cut& cut, const optim::OptimizerOptions& update = muon_options()) {
  Tensors weights;
  comm::run_ranks_as_threads(cut.world_size, [&](comm::Communicator& communicator) {
    at::set_num_threads(1);
    auto model = testing::make_initialized(testing::tiny_options());
    shard::ShardOptions options;
    options.strategy = cut.strategy;
    options.layout = cut.layout;
    options.min_num_params = 200;
    auto engine =
        shard::fully_shard(*model, options, comm::Mesh({.dcn = cut.dcn}, testing::borrowed(communicator)));
    optim::ShardedMatrices matrices(*engine, update);
    auto optimizer = optim::make_optimizer(update, optim::flat_parameters(*engine, update), &matrices);
    for (int64_t step = 1; step <= 3; ++step) {
      std::vector<at::Tensor> gradients;
      for (const auto& unit : engine->units()) {
        const shard::UnitLayout& layout = unit->storage().layout();
        at::Tensor flat = at::zeros_like(unit->storage().shard());
        for (size_t p = 0; p < layout.parameters().size(); ++p) {
          at::Tensor whole = gradient_of(layout.parameters()[p], step);
          shard::LayoutPiece piece = shard::local_piece(layout, p, unit->storage().place().rank, whole, flat);
          piece.gathered.copy_(piece.whole);
        }
        gradients.push_back(flat);
      }
      optimizer->step(gradients, 0.02);
    }
    for (auto& [name, weight] : shard::full_state_dict(*engine, {.rank0_only = true})) weights[name] = weight;
  });
  return weights;
}

class MuonOverShards : public ::testing::TestWithParam<Cut> {};

TEST_P(MuonOverShards, GivesBitForBitWhatItGivesOverWholeParameters) {
  const Tensors whole = trained({"alone", 1}), found = trained(GetParam());
  ASSERT_EQ(found.size(), whole.size());
  for (const auto& [name, weight] : found) EXPECT_TRUE(at::equal(weight, whole.at(name))) << name;
}

INSTANTIATE_TEST_SUITE_P(All, MuonOverShards,
                         ::testing::Values(Cut{"two_ranks", 2}, Cut{"three_ranks", 3}, Cut{"eight_ranks", 8},
                                           Cut{"zero2", 2, "shard_grad_op"}, Cut{"no_shard", 3, "no_shard"},
                                           Cut{"per_parameter", 3, "full_shard", "per_parameter"},
                                           Cut{"hybrid", 4, "hybrid_shard", "flat", 2},
                                           Cut{"hybrid_per_parameter", 4, "hybrid_shard", "per_parameter",
                                               2}),
                         [](const auto& info) { return info.param.name; });

TEST(Muon, LeavesAllButMatricesOfHiddenLayersToAdamW) {
  optim::OptimizerOptions adamw = muon_options();
  adamw.name = "adamw";
  const Cut cut{"two_ranks", 2};
  const Tensors found = trained(cut), expected = trained(cut, adamw);
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
