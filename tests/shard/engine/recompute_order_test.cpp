// Recomputation inside of a unit's hook, FairScale's FSDP(checkpoint(m)), and outside of it,
// checkpoint(FSDP(m)).

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/nn/recompute.h"
#include "support/chain_run.h"
#include "support/log_lines.h"
#include "support/sharded_run.h"

namespace fsdp::shard::recomputing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::RunPlan;
using Names = std::vector<std::string>;

enum class Order { kNone, kInside, kOutside };

/// A chain of four matrices, all of them units, and what one rank of two does in the third step.
struct OrderRun {
  OrderRun(comm::Communicator& communicator, const ShardOptions& options, Order order, bool of_root = false)
      : calls(communicator), chain(4, 4) {
    const auto attach = [&](Order now) {
      if (order != now) return;
      if (of_root) return chain.attach(std::make_shared<nn::Recompute>());
      for (size_t i = 0; i < chain.size(); ++i) chain.layer(i).attach(std::make_shared<nn::Recompute>());
    };
    attach(Order::kOutside);
    engine = testing::shard_under_test(chain, options, testing::borrowed(calls));
    attach(Order::kInside);
    for (size_t i = 0; i < chain.size(); ++i) {
      chain.layer(i).probe = [this, i](const at::Tensor&) { calls.mark(concat("layers.", i)); };
    }
  }

  /// Returns the gradients and leaves the calls of the step in `calls`.
  std::vector<at::Tensor> third_step() {
    for (int step = 0; step < 3; ++step) {
      calls.clear();
      engine->zero_gradients();
      chain.forward(at::full({2, 4}, 0.1f * static_cast<float>(calls.rank() + 1))).sum().backward();
      EXPECT_EQ(engine->live_unsharded_bytes(), 0);
    }
    std::vector<at::Tensor> gradients;
    for (const auto& unit : engine->units()) gradients.push_back(unit->storage().shard_gradient().clone());
    return gradients;
  }
  std::vector<int64_t> counts() const {
    return {calls.count("all_gather", "forward"), calls.count("all_gather", "backward"),
            calls.count("reduce_scatter"), calls.count("all_reduce")};
  }

  testing::CountingCommunicator calls;
  testing::ChainStage chain;
  std::shared_ptr<Engine> engine;
};

TEST(RecomputeOrder, CommunicatesAsOftenInsideAsOutsideOfUnits) {
  for (const char* strategy : {"full_shard", "shard_grad_op", "no_shard"}) {
    for (const char* forward : {"none", "implicit", "explicit"}) {
      if (std::string(strategy) == "no_shard" && std::string(forward) == "explicit")
        continue;  // gathers none
      for (const char* backward : {"none", "pre", "post"}) {
        comm::run_ranks_as_threads(2, [&](comm::Communicator& communicator) {
          ShardOptions options = testing::every_matrix(forward, backward);
          options.strategy = strategy;
          OrderRun plain(communicator, options, Order::kNone), inside(communicator, options, Order::kInside),
              outside(communicator, options, Order::kOutside);
          const std::string what = concat(strategy, ", ", forward, ", ", backward);
          const auto gradients = plain.third_step();
          EXPECT_TRUE(testing::identical(inside.third_step(), gradients)) << what;
          EXPECT_TRUE(testing::identical(outside.third_step(), gradients)) << what;
          EXPECT_EQ(inside.counts(), plain.counts()) << what;
          EXPECT_EQ(outside.counts(), plain.counts()) << what;
          EXPECT_EQ(plain.counts()[1], std::string(strategy) == "full_shard" ? 3 : 0) << what;
        });
      }
    }
  }
}

// The price of the outer place: the recomputation of a unit does not overlap with the gather of the next.
TEST(RecomputeOrder, OutsideGathersTheNextUnitAfterTheRecomputation) {
  comm::run_ranks_as_threads(2, [&](comm::Communicator& communicator) {
    const auto backward_of = [&](Order order) {
      OrderRun run(communicator, testing::every_matrix("implicit", "pre"), order);
      run.third_step();
      Names names = run.calls.names();
      const auto last = std::ranges::find(names, "compute layers.3");
      Names found;
      for (auto name = last + 1; name != names.end() && found.size() < 4; ++name) {
        if (!name->starts_with("reduce_scatter")) found.push_back(*name);
      }
      return found;
    };
    EXPECT_THAT(backward_of(Order::kInside), ElementsAre("all_gather layers.2", "compute layers.3",
                                                         "all_gather layers.1", "compute layers.2"));
    EXPECT_THAT(backward_of(Order::kOutside), ElementsAre("compute layers.3", "all_gather layers.2",
                                                          "compute layers.2", "all_gather layers.1"));
  });
}

TEST(RecomputeOrder, OutsideOfTheRootGathersEverythingOnceMoreAndSaysSoOnce) {
  const auto run = [](Order order) {
    std::vector<int64_t> counts;
    const std::string log = testing::log_lines([&] {
      comm::run_ranks_as_threads(2, [&](comm::Communicator& communicator) {
        const ShardOptions options = testing::every_matrix("implicit", "pre");
        OrderRun plain(communicator, options, Order::kNone),
            recomputed(communicator, options, order, /*of_root=*/true);
        EXPECT_TRUE(testing::identical(recomputed.third_step(), plain.third_step()));
        if (communicator.rank() == 0) counts = recomputed.counts();
      });
    });
    return std::pair(counts, log);
  };
  const auto [inside, nothing] = run(Order::kInside);
  EXPECT_THAT(inside, ElementsAre(5, 3, 5, 0));
  EXPECT_EQ(nothing, "");
  const auto [outside, warning] = run(Order::kOutside);
  EXPECT_THAT(outside, ElementsAre(10, 3, 5, 0));
  EXPECT_THAT(warning, HasSubstr("each step gathers all units three times instead of two"));
  EXPECT_EQ(warning.find("gathers"), warning.rfind("gathers")) << "once, on rank 0";
}

// Units inside of what is recomputed too.
TEST(RecomputeOrder, DecodersTrainBitForBitAlike) {
  for (const char* strategy : {"full_shard", "shard_grad_op", "hybrid_shard"}) {
    for (int64_t min_num_params : {1, 500}) {
      RunPlan plan;
      plan.shard.strategy = strategy;
      plan.shard.min_num_params = min_num_params;
      plan.shard.exclude_stages = {};
      if (std::string(strategy) == "hybrid_shard") plan.mesh.dcn = 2;
      const auto expected = testing::train_sharded(2, plan);
      for (const char* type : {"block", "feed_forward", "embedding"}) {
        for (bool outside : {false, true}) {
          plan.recompute = {type};
          plan.recomputes_outside = outside;
          testing::expect_identical_runs(testing::train_sharded(2, plan), expected,
                                         concat(strategy, min_num_params, type, outside));
        }
      }
    }
  }
}

}  // namespace
}  // namespace fsdp::shard::recomputing
