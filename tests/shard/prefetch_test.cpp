// When the next gather is issued, ahead of the compute of the current unit or on use, and how many units are
// gathered at once.

#include <gtest/gtest.h>

#include <future>

#include "support/chain_run.h"
#include "util/error.h"

namespace fsdp::shard {
namespace {

using testing::ChainRun;
using testing::every_matrix;
using testing::Names;

/// Gathers and computes of one forward, in order.
Names forward_of_pass(int pass, const ShardOptions& options) {
  Names names;
  comm::run_ranks_as_threads(2, [&](comm::Communicator& communicator) {
    ChainRun run(communicator, options, 3);
    for (size_t i = 0; i < 3; ++i) {
      run.chain.layer(i).probe = [&run, i](const at::Tensor&) { run.calls.mark(std::to_string(i)); };
    }
    for (int p = 1; p <= pass; ++p) {
      run.calls.clear();
      run.step();
    }
    if (communicator.rank() != 0) return;
    for (const auto& call : run.calls.calls()) {
      if (call.unit == "execution order" || call.pass == "backward") continue;
      names.push_back(call.op == "compute" ? "compute " + call.unit : "gather " + call.unit);
    }
  });
  return names;
}

const Names kWhenUsed = {"gather root", "gather layers.0", "compute 0", "gather layers.1",
                         "compute 1",   "gather layers.2", "compute 2"};
const Names kOneAhead = {"gather root",     "gather layers.0", "gather layers.1", "compute 0",
                         "gather layers.2", "compute 1",       "compute 2"};
const Names kAllAhead = {"gather root", "gather layers.0", "gather layers.1", "gather layers.2",
                         "compute 0",   "compute 1",       "compute 2"};

TEST(ForwardPrefetch, FirstPassGathersWhenUnitsAreUsed) {
  for (const char* prefetch : {"none", "implicit", "explicit"}) {
    EXPECT_EQ(forward_of_pass(1, every_matrix(prefetch)), kWhenUsed) << prefetch;
  }
}

TEST(ForwardPrefetch, FromTheSecondPassTheNextGatherIsIssuedBeforeTheCompute) {
  for (const char* prefetch : {"implicit", "explicit"}) {
    for (int pass : {2, 3}) EXPECT_EQ(forward_of_pass(pass, every_matrix(prefetch)), kOneAhead) << prefetch;
  }
}

TEST(ForwardPrefetch, WithoutItEveryPassGathersWhenUnitsAreUsed) {
  EXPECT_EQ(forward_of_pass(3, every_matrix("none")), kWhenUsed);
}

TEST(ForwardPrefetch, WithoutLimitAllGathersAreIssuedAtOnce) {
  for (const char* prefetch : {"implicit", "explicit"}) {
    ShardOptions options = every_matrix(prefetch);
    options.limit_all_gathers = false;
    EXPECT_EQ(forward_of_pass(2, options), kAllAhead) << prefetch;
  }
}

/// The most matrices that are gathered together while one of the forward computes.
int64_t most_gathered_in_forward(const ShardOptions& options) {
  int64_t most = 0;
  comm::run_ranks_as_threads(2, [&](comm::Communicator& communicator) {
    ChainRun run(communicator, options, 6);
    int64_t mine = 0;
    for (size_t i = 0; i < 6; ++i) {
      run.chain.layer(i).probe = [&](const at::Tensor&) {
        run.calls.enqueue([] {})->wait();  // what was issued has been done
        mine = std::max(mine, run.engine->unsharded_memory().live_parameters - 4 * 4);
      };
    }
    for (int pass = 0; pass < 3; ++pass) run.step();
    EXPECT_EQ(run.engine->live_unsharded_bytes(), 0);
    if (communicator.rank() == 0) most = mine;
  });
  return most / (16 * 4);
}

TEST(LimitAllGathers, HoldsAtMostTwoUnitsBesideTheRoot) {
  EXPECT_EQ(most_gathered_in_forward(every_matrix("none")), 1);
  EXPECT_EQ(most_gathered_in_forward(every_matrix("implicit")), 2);
  EXPECT_EQ(most_gathered_in_forward(every_matrix("explicit")), 2);
  ShardOptions options = every_matrix("explicit", "pre");
  EXPECT_EQ(most_gathered_in_forward(options), 2);
  options.limit_all_gathers = false;
  EXPECT_EQ(most_gathered_in_forward(options), 6);
}

TEST(BackwardPrefetch, IssuesTheNextGatherBeforeOrAfterTheReduction) {
  auto backward_with = [](const char* prefetch) {
    Names names;
    comm::run_ranks_as_threads(2, [&](comm::Communicator& communicator) {
      ChainRun run(communicator, every_matrix("none", prefetch), 3);
      run.step();
      if (communicator.rank() == 0) names = run.calls.names("backward");
    });
    return names;
  };
  EXPECT_EQ(backward_with("pre"),
            (Names{"all_gather layers.1", "reduce_scatter layers.2", "all_gather layers.0",
                   "reduce_scatter layers.1", "reduce_scatter layers.0", "reduce_scatter root"}));
  Names next_after = {"reduce_scatter layers.2", "all_gather layers.1",     "reduce_scatter layers.1",
                      "all_gather layers.0",     "reduce_scatter layers.0", "reduce_scatter root"};
  EXPECT_EQ(backward_with("post"), next_after);
  EXPECT_EQ(backward_with("none"), next_after);
}

constexpr auto kPatience = std::chrono::seconds(20);

TEST(Overlap, TheNextGatherEndsWhileAUnitComputes) {
  for (const char* prefetch : {"implicit", "explicit"}) {
    comm::run_ranks_as_threads(2, [&](comm::Communicator& inner) {
      std::map<std::string, std::promise<void>> gathered;
      bool watching = false;
      for (size_t i = 0; i < 4; ++i) gathered[util::concat("layers.", i)];
      testing::InterposedCommunicator watched(inner, nullptr, [&](auto& op, auto& unit, auto& pass) {
        if (watching && op == "all_gather" && pass == "forward" && unit != "root") gathered[unit].set_value();
      });
      ChainRun run(watched, every_matrix(prefetch));
      run.step();
      watching = true;
      for (size_t i = 0; i + 1 < 4; ++i) {
        run.chain.layer(i).probe = [&gathered, i](const at::Tensor&) {
          auto next = gathered[util::concat("layers.", i + 1)].get_future();
          EXPECT_EQ(next.wait_for(kPatience), std::future_status::ready) << i;
        };
      }
      run.step();
    });
  }
}

TEST(Overlap, TheNextBackwardComputesWhileAReductionIsUnderWay) {
  comm::run_ranks_as_threads(2, [](comm::Communicator& inner) {
    // The reduction of unit i+1 is held up until the backward of unit i has gone through its matrix.
    std::vector<std::promise<void>> computed(3);
    int held_up = 0;
    testing::InterposedCommunicator watched(inner, [&](auto& op, auto& unit, auto&) {
      if (op != "reduce_scatter" || unit == "root" || unit == "layers.0") return;
      size_t i = static_cast<size_t>(unit.back() - '1');
      EXPECT_EQ(computed[i].get_future().wait_for(kPatience), std::future_status::ready) << unit;
      ++held_up;
    });
    ChainRun run(watched, every_matrix("implicit", "pre"));
    for (size_t i = 0; i < 3; ++i) {
      run.chain.layer(i).weight().register_hook(
          [&computed, i](const at::Tensor&) { computed[i].set_value(); });
    }
    run.step();
    EXPECT_EQ(held_up, 3);
  });
}

}  // namespace
}  // namespace fsdp::shard
