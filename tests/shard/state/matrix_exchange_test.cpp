#include "shard/state/matrix_exchange.h"

#include <gtest/gtest.h>

#include <mutex>
#include <set>

#include "shard/engine/layout_views.h"
#include "support/counting_communicator.h"
#include "support/sharded_run.h"

namespace fsdp::shard {
namespace {

bool is_matrix(const Segment& segment) { return segment.shape.size() == 2; }

/// A function of whole matrices only.
at::Tensor image_of(const at::Tensor& matrix) { return matrix.mm(matrix.t()).mm(matrix).div_(matrix.norm()); }

/// Every stage is a unit.
ShardOptions every_stage() {
  ShardOptions options;
  options.min_num_params = 1;
  return options;
}

struct ExchangeSetting {
  const char* name;
  int world_size;
  const char* strategy;
  int dcn = 1;
};

class Exchange : public ::testing::TestWithParam<ExchangeSetting> {};

TEST_P(Exchange, MapsEveryMatrixOnceAndGivesEachRankItsPart) {
  std::mutex mutex;
  std::multiset<std::vector<int64_t>> computed;
  size_t matrices = 0;
  comm::run_ranks_as_threads(GetParam().world_size, [&](comm::Communicator& communicator) {
    at::set_num_threads(1);
    auto model = testing::make_initialized(testing::tiny_options());
    std::map<std::string, at::Tensor> weights;
    for (const auto& named : model->named_parameters()) weights[named.key()] = named.value().detach().clone();
    ShardOptions options;
    options.strategy = GetParam().strategy;
    options.min_num_params = 200;
    auto engine = testing::shard_under_test(
        *model, options, comm::Mesh({.dcn = GetParam().dcn}, testing::borrowed(communicator)));
    MatrixExchange exchange(*engine, is_matrix);
    size_t found = 0;
    for (size_t u = 0; u < engine->units().size(); ++u) {
      const Unit& unit = *engine->units()[u];
      const UnitLayout& layout = unit.storage().layout();
      at::Tensor flat = unit.storage().shard().clone();
      exchange.map(u, flat, [&](const at::Tensor& matrix) {
        std::lock_guard lock(mutex);
        computed.insert(matrix.sizes().vec());
        return image_of(matrix);
      });
      for (size_t p = 0; p < layout.parameters().size(); ++p) {
        const ParameterPlace& place = layout.parameters()[p];
        if (place.shape.size() != 2) continue;
        ++found;
        at::Tensor image = image_of(weights.at(place.name));
        LayoutPiece piece = local_piece(layout, p, unit.storage().place().rank, image, flat);
        EXPECT_TRUE(at::equal(piece.gathered, piece.whole)) << place.name;
      }
    }
    if (communicator.rank() == 0) matrices = found;
  });
  // Groups that hold the same shards compute the same matrices.
  const bool replicated_shards = std::string(GetParam().strategy) == "hybrid_shard";
  EXPECT_EQ(computed.size(), matrices * static_cast<size_t>(replicated_shards ? GetParam().dcn : 1));
}

INSTANTIATE_TEST_SUITE_P(All, Exchange,
                         ::testing::Values(ExchangeSetting{"alone", 1, "full_shard"},
                                           ExchangeSetting{"two_ranks", 2, "full_shard"},
                                           ExchangeSetting{"three_ranks", 3, "full_shard"},
                                           ExchangeSetting{"zero2", 2, "shard_grad_op"},
                                           ExchangeSetting{"no_shard", 3, "no_shard"},
                                           ExchangeSetting{"hybrid", 4, "hybrid_shard", 2}),
                         [](const auto& info) { return info.param.name; });

TEST(MatrixExchange, GathersAndScattersOnceAUnit) {
  comm::run_ranks_as_threads(2, [](comm::Communicator& inner) {
    testing::CountingCommunicator communicator(inner);
    testing::ChainStage chain(2, 3);
    auto engine = testing::shard_under_test(chain, every_stage(), testing::borrowed(communicator));
    MatrixExchange exchange(*engine, is_matrix);
    const int64_t gathers = communicator.count("all_gather"), scatters = communicator.count("reduce_scatter");
    int64_t units = 0;
    for (size_t u = 0; u < engine->units().size(); ++u) {
      at::Tensor flat = engine->units()[u]->storage().shard().clone();
      exchange.map(u, flat, [](const at::Tensor& matrix) { return matrix * 2; });
      units += exchange.has_matrices(u) ? 1 : 0;
    }
    EXPECT_EQ(units, 2);
    EXPECT_EQ(communicator.count("all_gather") - gathers, units);
    EXPECT_EQ(communicator.count("reduce_scatter") - scatters, units);
  });
}

TEST(MatrixExchange, KnowsUnitsWithoutMatrices) {
  comm::run_ranks_as_threads(2, [](comm::Communicator& communicator) {
    testing::ChainStage chain(2, 3);
    auto engine = testing::shard_under_test(chain, every_stage(), testing::borrowed(communicator));
    MatrixExchange none(*engine, [](const Segment&) { return false; });
    for (size_t u = 0; u < engine->units().size(); ++u) {
      EXPECT_FALSE(none.has_matrices(u));
      at::Tensor flat = engine->units()[u]->storage().shard().clone(), before = flat.clone();
      none.map(u, flat, [](const at::Tensor& matrix) { return matrix * 2; });
      EXPECT_TRUE(at::equal(flat, before));
    }
  });
}

TEST(ShareMatrices, GivesEveryRankAboutTheSameWork) {
  // A block: four square matrices and three of the feed-forward.
  const std::vector<std::vector<int64_t>> block = {{64, 64},  {64, 64},  {64, 64}, {64, 64},
                                                   {172, 64}, {172, 64}, {64, 172}};
  for (int ranks : {1, 2, 3}) {
    std::vector<double> load(static_cast<size_t>(ranks));
    double total = 0;
    std::vector<int> owners = share_matrices(block, ranks);
    for (size_t i = 0; i < block.size(); ++i) {
      double cost = static_cast<double>(block[i][0] * block[i][1]) * 64;
      load[static_cast<size_t>(owners[i])] += cost;
      total += cost;
    }
    EXPECT_LT(*std::max_element(load.begin(), load.end()), 1.2 * total / ranks) << ranks;
  }
  EXPECT_EQ(share_matrices({{4, 4}, {8, 8}, {2, 2}}, 8), (std::vector<int>{1, 0, 2}));
  EXPECT_TRUE(share_matrices({}, 4).empty());
}

}  // namespace
}  // namespace fsdp::shard
