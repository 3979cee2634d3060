// When the next gather is issued, ahead of the compute of the current unit or on use, and how many units are
// gathered at once.

#include <gtest/gtest.h>

#include <future>

#include "base/util/error.h"
#include "support/chain_run.h"
#include "support/nested_models.h"

namespace fsdp::shard {
namespace {

using testing::ChainRun;
using testing::every_matrix;
using testing::Names;

using Order = std::vector<size_t>;

/// Gathers and computes of the last of several forwards, in order. Each uses the matrices of its order, if
/// that is not empty.
Names last_forward(const std::vector<Order>& orders, const ShardOptions& options, size_t layers = 3) {
  Names names;
  comm::run_ranks_as_threads(2, [&](comm::Communicator& communicator) {
    ChainRun run(communicator, options, static_cast<int64_t>(layers));
    for (size_t i = 0; i < layers; ++i) {
      run.chain.layer(i).probe = [&run, i](const at::Tensor&) { run.calls.mark(std::to_string(i)); };
    }
    for (const Order& order : orders) {
      run.calls.clear();
      run.chain.order = order;
      run.step();
    }
    EXPECT_EQ(run.engine->live_unsharded_bytes(), 0);
    if (communicator.rank() != 0) return;
    for (const auto& call : run.calls.calls()) {
      if (call.unit == "execution order" || call.pass == "backward") continue;
      names.push_back(call.op == "compute" ? "compute " + call.unit : "gather " + call.unit);
    }
  });
  return names;
}

Names forward_of_pass(int pass, const ShardOptions& options) {
  return last_forward(std::vector<Order>(static_cast<size_t>(pass)), options);
}

const Names kWhenUsed = {"gather root", "gather layers.0", "compute 0", "gather layers.1",
                         "compute 1",   "gather layers.2", "compute 2"};
const Names kOneAhead = {"gather root",     "gather layers.0", "gather layers.1", "compute 0",
                         "gather layers.2", "compute 1",       "compute 2"};
const Names kAllAhead = {"gather root", "gather layers.0", "gather layers.1", "gather layers.2",
                         "compute 0",   "compute 1",       "compute 2"};

TEST(ForwardPrefetch, ImplicitNeedsNoRecordedOrder) {
  EXPECT_EQ(forward_of_pass(1, every_matrix("implicit")), kOneAhead);
  ShardOptions options = every_matrix("implicit");
  options.limit_all_gathers = false;
  EXPECT_EQ(forward_of_pass(1, options), kAllAhead);
}

TEST(ForwardPrefetch, ExplicitRecordsTheOrderInTheFirstPass) {
  for (const char* prefetch : {"none", "explicit"}) {
    EXPECT_EQ(forward_of_pass(1, every_matrix(prefetch)), kWhenUsed) << prefetch;
  }
}

// The third pass leaves the order of the second at its first matrix: matrix 1 has been gathered in vain.
// Implicit prefetch continues when matrix 3 follows matrix 0 as it did before: matrix 2, which followed then,
// is likely again. In the module tree, it precedes matrix 3.
TEST(ForwardPrefetch, ImplicitFollowsAPassInAnotherOrder) {
  const std::vector<Order> orders = {{0, 3, 2}, {1}, {0, 3, 2}};
  EXPECT_EQ(last_forward(orders, every_matrix("implicit"), 4),
            (Names{"gather root", "gather layers.1", "gather layers.0", "compute 0", "gather layers.3",
                   "gather layers.2", "compute 3", "compute 2"}));
  EXPECT_EQ(last_forward(orders, every_matrix("explicit"), 4),
            (Names{"gather root", "gather layers.1", "gather layers.0", "compute 0", "gather layers.3",
                   "compute 3", "gather layers.2", "compute 2"}));
}

TEST(ForwardPrefetch, ASkippedUnitCostsOneGatherAndLaterOnesAreGatheredAheadAgain) {
  EXPECT_EQ(last_forward({{0, 2, 3, 4}}, every_matrix("implicit"), 5),
            (Names{"gather root", "gather layers.0", "gather layers.1", "compute 0", "gather layers.2",
                   "compute 2", "gather layers.3", "gather layers.4", "compute 3", "compute 4"}));
  EXPECT_EQ(last_forward({{0, 1, 2, 3}, {1, 2, 3}}, every_matrix("implicit"), 4),
            (Names{"gather root", "gather layers.0", "gather layers.1", "compute 1", "gather layers.2",
                   "gather layers.3", "compute 2", "compute 3"}));
}

TEST(ForwardPrefetch, AnOrderUnlikeThatOfTheModulesIsNotGuessedOnAndOn) {
  EXPECT_EQ(last_forward({{2, 1, 0}}, every_matrix("implicit")),
            (Names{"gather root", "gather layers.0", "gather layers.2", "compute 2", "gather layers.1",
                   "compute 1", "compute 0"}));
}

// A pass that ends early has gathered one unit for nothing; the next one knows where it ends.
TEST(ForwardPrefetch, AnEarlyEndCostsOneGatherOnce) {
  EXPECT_EQ(last_forward({{0}}, every_matrix("implicit")),
            (Names{"gather root", "gather layers.0", "gather layers.1", "compute 0"}));
  EXPECT_EQ(last_forward({{0}, {0}}, every_matrix("implicit")),
            (Names{"gather root", "gather layers.0", "compute 0"}));
}

TEST(ForwardPrefetch, AUnitGatheredTooEarlyIsThereWhenItIsUsed) {
  const std::vector<Order> orders = {{0, 1, 2}, {1, 0}};
  EXPECT_EQ(last_forward(orders, every_matrix("explicit")),
            (Names{"gather root", "gather layers.0", "gather layers.1", "compute 1", "compute 0"}));
}

TEST(ForwardPrefetch, KnowsEachUseOfAUnitThatIsUsedTwice) {
  const std::vector<Order> orders = {{0, 1, 0, 2}, {0, 1, 0, 2}};
  for (const char* prefetch : {"implicit", "explicit"}) {
    EXPECT_EQ(last_forward(orders, every_matrix(prefetch)),
              (Names{"gather root", "gather layers.0", "gather layers.1", "compute 0", "gather layers.0",
                     "compute 1", "gather layers.2", "compute 0", "compute 2"}))
        << prefetch;
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

/// Doubles its input. `backward` is called when its backward begins: after the backward of the stage behind
/// it has ended, and before that of the stage in front of it begins.
class Doubling final : public nn::Stage {
 public:
  explicit Doubling(std::function<void()> backward) : backward_(std::move(backward)) {}
  std::string type_name() const override { return "doubling"; }

 protected:
  at::Tensor compute(const at::Tensor& x, const nn::StageContext&) override {
    at::Tensor doubled = x + x;
    doubled.register_hook([backward = backward_](const at::Tensor&) { backward(); });
    return doubled;
  }

 private:
  std::function<void()> backward_;
};

/// What one backward issues in the chain of matrix 0, doubling 1, matrix 2, doubling 3, matrix 4.
Names backward_with(const std::string& prefetch) {
  Names names;
  comm::run_ranks_as_threads(2, [&](comm::Communicator& inner) {
    testing::CountingCommunicator calls(inner);
    const auto doubling = [&](const char* name) {
      return std::make_shared<Doubling>([&calls, name] { calls.mark(name); });
    };
    auto model = testing::group(
        {testing::matrix(4), doubling("1"), testing::matrix(4), doubling("3"), testing::matrix(4)}, "root",
        4);
    auto engine = testing::shard_under_test(*model, every_matrix("none", prefetch), testing::borrowed(calls));
    at::Tensor loss = model->forward(at::ones({2, 4})).sum();
    calls.clear();
    loss.backward();
    if (inner.rank() == 0) names = calls.names();
  });
  return names;
}

TEST(BackwardPrefetch, PreIssuesTheNextGatherBeforeTheReduction) {
  EXPECT_EQ(backward_with("pre"),
            (Names{"all_gather 2", "reduce_scatter 4", "compute 3", "all_gather 0", "reduce_scatter 2",
                   "compute 1", "reduce_scatter 0", "reduce_scatter root"}));
}

TEST(BackwardPrefetch, PostIssuesTheNextGatherRightAfterTheReduction) {
  EXPECT_EQ(backward_with("post"),
            (Names{"reduce_scatter 4", "all_gather 2", "compute 3", "reduce_scatter 2", "all_gather 0",
                   "compute 1", "reduce_scatter 0", "reduce_scatter root"}));
}

TEST(BackwardPrefetch, NoneIssuesTheNextGatherWhenTheUnitIsUsed) {
  EXPECT_EQ(backward_with("none"),
            (Names{"reduce_scatter 4", "compute 3", "all_gather 2", "reduce_scatter 2", "compute 1",
                   "all_gather 0", "reduce_scatter 0", "reduce_scatter root"}));
}

constexpr auto kPatience = std::chrono::seconds(20);

// Implicit prefetch in the first forward, explicit in the second.
TEST(Overlap, TheNextGatherEndsWhileAUnitComputes) {
  for (const char* prefetch : {"implicit", "explicit"}) {
    comm::run_ranks_as_threads(2, [&](comm::Communicator& inner) {
      std::map<std::string, std::promise<void>> gathered;
      bool watching = *prefetch == 'i';
      for (size_t i = 0; i < 4; ++i) gathered[concat("layers.", i)];
      testing::InterposedCommunicator watched(inner, nullptr, [&](auto& op, auto& unit, auto& pass) {
        if (watching && op == "all_gather" && pass == "forward" && unit != "root") gathered[unit].set_value();
      });
      ChainRun run(watched, every_matrix(prefetch));
      if (!watching) run.step();
      watching = true;
      for (size_t i = 0; i + 1 < 4; ++i) {
        run.chain.layer(i).probe = [&gathered, i](const at::Tensor&) {
          auto next = gathered[concat("layers.", i + 1)].get_future();
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
