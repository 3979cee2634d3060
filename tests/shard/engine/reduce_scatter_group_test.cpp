// Reduce-scatters in a group of their own: fsdp.reduce_scatter_group.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <mutex>

#include "base/util/error.h"
#include "shard/engine/engine_sizes.h"
#include "support/chain_run.h"
#include "support/connected_ranks.h"
#include "support/sharded_run.h"

namespace fsdp::shard {
namespace {

using testing::ChainRun;
using testing::every_matrix;
using testing::identical;
using testing::RunPlan;
using testing::RunResult;

ShardOptions with_group(const std::string& strategy = "full_shard") {
  ShardOptions options = every_matrix("implicit", "pre");
  options.strategy = strategy;
  options.reduce_scatter_group = true;
  return options;
}

/// Notes for each gather and reduction of units which communicator it was issued to.
class GroupNotes final : public testing::ForwardingCommunicator {
 public:
  using Log = std::multimap<std::string, const void*>;  ///< communicators by operation
  GroupNotes(std::shared_ptr<comm::Communicator> inner, std::shared_ptr<Log> log)
      : ForwardingCommunicator(std::move(inner)), log_(std::move(log)) {}

 protected:
  std::unique_ptr<comm::Work> collective(const comm::Collective& call, const comm::CallSite& site) override {
    log_->emplace(call.name(), this);
    return call.issue(inner(), site);
  }
  std::shared_ptr<comm::Communicator> around(std::shared_ptr<comm::Communicator> group) override {
    return std::make_shared<GroupNotes>(std::move(group), log_);
  }

 private:
  std::shared_ptr<Log> log_;
};

TEST(ReduceScatterGroup, IsOneMoreGroupOfTheSameRanks) {
  for (const char* strategy : {"full_shard", "shard_grad_op", "hybrid_shard"}) {
    for (bool own : {true, false}) {
      comm::run_ranks_as_threads(4, [&](comm::Communicator& rank) {
        auto log = std::make_shared<GroupNotes::Log>();
        ShardOptions options = with_group(strategy);
        options.reduce_scatter_group = own;
        testing::ChainStage chain(4, 4);
        comm::Mesh mesh({.dcn = 2}, std::make_shared<GroupNotes>(testing::borrowed(rank), log));
        auto engine = testing::shard_under_test(chain, options, mesh);
        const ProcessGroups& groups = engine->units()[1]->groups();
        EXPECT_EQ(groups.reduce_scatter != groups.shard, own);
        EXPECT_EQ(groups.reduce_scatter->world_size(), groups.shard->world_size());
        EXPECT_EQ(groups.reduce_scatter->rank(), groups.shard->rank());
        EXPECT_EQ(engine->units()[2]->groups().reduce_scatter, groups.reduce_scatter) << "one for all units";
        chain.forward(at::ones({2, 4})).sum().backward();
        EXPECT_EQ(log->count("reduce_scatter"), 5);
        for (const auto& [op, communicator] : *log) {
          const void* expected = op == "all_gather" ? groups.shard.get() : groups.reduce_scatter.get();
          EXPECT_TRUE(op == "all_reduce" || communicator == expected) << op;
        }
      });
    }
  }
}

TEST(ReduceScatterGroup, IsNotMadeWhereNothingIsScattered) {
  comm::run_ranks_as_threads(2, [](comm::Communicator& rank) {
    ShardOptions options = with_group();
    options.replicated_parameters = {"layers.0.*"};
    ChainRun run(rank, options);
    const ProcessGroups& groups = run.engine->units()[1]->groups();
    EXPECT_EQ(run.engine->units()[1]->name(), "root.replicated");
    EXPECT_EQ(groups.reduce_scatter, groups.shard);
    run.step();
  });
}

TEST(ReduceScatterGroup, ChangesNoBit) {
  for (const char* strategy : {"full_shard", "shard_grad_op", "hybrid_shard"}) {
    for (const char* prefetch : {"none", "post", "pre"}) {
      for (bool accumulates : {false, true}) {
        RunPlan plan;
        plan.mesh = {.dcn = 2, .data = 2};
        plan.global_rows = 24;
        plan.max_norm = 0.5;
        plan.shard.min_num_params = 400;
        plan.shard.strategy = strategy;
        plan.shard.backward_prefetch = prefetch;
        plan.accumulation = accumulates ? 2 : 1;
        plan.no_sync = accumulates;
        plan.interpose = [](comm::Communicator& rank) { return testing::delayed(rank, true, true); };
        const RunResult expected = train_sharded(4, plan);
        plan.shard.reduce_scatter_group = true;
        expect_identical_runs(train_sharded(4, plan), expected, concat(strategy, ", ", prefetch));
      }
    }
  }
}

TEST(ReduceScatterGroup, ChangesNoBitOverSharedMemoryAndSockets) {
  std::vector<at::Tensor> expected;
  comm::run_ranks_as_threads(2, [&](comm::Communicator& rank) {
    std::vector<at::Tensor> gradients = ChainRun(rank, every_matrix("implicit", "pre")).gradients_of_a_step();
    if (rank.rank() == 0) expected = gradients;
  });
  for (const char* backend : {"shm", "gloo"}) {
    testing::run_ranks_over(backend, {.world_size = 2}, [&](std::shared_ptr<comm::Communicator>& rank) {
      ChainRun run(*rank, with_group());
      for (int step = 0; step < 3; ++step) {
        const std::vector<at::Tensor> gradients = run.gradients_of_a_step();
        EXPECT_TRUE(rank->rank() != 0 || identical(gradients, expected)) << backend;
      }
      rank->barrier({.unit = "end"});
    });
  }
}

// The reduction of the last unit does not begin before the gather behind it has ended. In one queue this
// would hang.
TEST(ReduceScatterGroup, AGatherNeedNotWaitForTheReductionIssuedBeforeIt) {
  comm::run_ranks_as_threads(2, [](comm::Communicator& inner) {
    auto gathered = std::make_shared<std::promise<void>>();
    std::shared_future<void> when = gathered->get_future().share();
    auto order = std::make_shared<std::vector<std::string>>();
    auto mutex = std::make_shared<std::mutex>();
    const auto note = [order, mutex](const std::string& text) {
      std::lock_guard lock(*mutex);
      order->push_back(text);
    };
    testing::InterposedCommunicator interposed(
        inner,
        [when](const std::string& op, const std::string& unit, const std::string&) {
          if (op == "reduce_scatter" && unit == "layers.3") when.wait();
        },
        [gathered, note](const std::string& op, const std::string& unit, const std::string& pass) {
          if (pass == "backward") note(op + " " + unit);
          if (op == "all_gather" && unit == "layers.1" && pass == "backward") gathered->set_value();
        });
    ChainRun run(interposed, with_group(), 4);
    run.step();
    {
      std::lock_guard lock(*mutex);
      const auto place = [&](const std::string& what) { return std::ranges::find(*order, what); };
      EXPECT_LT(place("all_gather layers.1"), place("reduce_scatter layers.3"));
    }
    inner.barrier(
        {.unit = "end"});  // without the mutex, for which a collective that has ended may still wait
  });
}

// While layers.2 computes its gradients, the reduction of layers.3 has not been sent, and layers.1 is
// gathered.
TEST(ReduceScatterGroup, NeedsOneMoreBufferOfAUnitAndNoMore) {
  if (!testing::flat_is_under_test()) GTEST_SKIP() << "the other layout gathers into buffers of its own";
  comm::run_ranks_as_threads(2, [](comm::Communicator& inner) {
    auto gathered = std::make_shared<std::promise<void>>(), computed = std::make_shared<std::promise<void>>();
    std::shared_future<void> is_gathered = gathered->get_future().share();
    std::shared_future<void> is_computed = computed->get_future().share();
    testing::InterposedCommunicator interposed(
        inner,
        [is_computed](const std::string& op, const std::string& unit, const std::string&) {
          if (op == "reduce_scatter" && unit == "layers.3") is_computed.wait();
        },
        [gathered](const std::string& op, const std::string& unit, const std::string& pass) {
          if (op == "all_gather" && unit == "layers.1" && pass == "backward") gathered->set_value();
        });
    ChainRun run(interposed, with_group(), 4);
    int64_t live = 0;
    run.chain.layer(2).weight().register_hook([&](const at::Tensor&) {
      is_gathered.wait();
      live = run.engine->live_unsharded_bytes();
      computed->set_value();
    });
    run.step();
    const int64_t root = 4 * 4, matrix = 16 * 4;
    EXPECT_EQ(live, 2 * root + 4 * matrix);
    EXPECT_EQ(step_formula(*run.engine).unsharded_bytes, live);
    EXPECT_EQ(run.engine->unsharded_memory().peak, live);
    ChainRun usual(inner, every_matrix("implicit", "pre"), 4);
    EXPECT_EQ(step_formula(*usual.engine).unsharded_bytes, 2 * root + 3 * matrix);
    inner.barrier({.unit = "end"});
  });
}

TEST(ReduceScatterGroup, IsInTheTrace) {
  comm::run_ranks_as_threads(2, [](comm::Communicator& rank) {
    auto trace = std::make_shared<comm::Trace>();
    testing::ChainStage chain(4, 4);
    comm::Mesh mesh({}, comm::make_tracing_communicator(testing::borrowed(rank), trace));
    auto engine = testing::shard_under_test(chain, with_group(), mesh, trace);
    trace->begin_step(1);
    chain.forward(at::ones({2, 4})).sum().backward();
    std::map<std::string, int64_t> counts;
    for (const auto& event : trace->events(1)) {
      if (event.is_buffer()) continue;
      ++counts[event.op];
      EXPECT_TRUE(event.done_us.has_value()) << event.op << event.unit;
    }
    EXPECT_EQ(counts["reduce_scatter"], 5);
  });
}

// ---- failures

TEST(ReduceScatterGroupFailure, OfAReductionIsThrownByBackwardAndForgottenByReset) {
  std::atomic<int> failed = 0;
  comm::run_ranks_as_threads(2, [&](comm::Communicator& inner) {
    testing::InterposedCommunicator interposed(
        inner, [](const std::string& op, const std::string& unit, const std::string&) {
          if (op == "reduce_scatter" && unit == "layers.2") fail(ErrorKind::kPeerLost, "no ", op);
        });
    ChainRun run(interposed, with_group());
    try {
      run.step();
    } catch (const util::Error& error) {
      EXPECT_EQ(std::string(error.what()), "no reduce_scatter");
      ++failed;
    }
    run.engine->reset();
    EXPECT_EQ(run.engine->live_unsharded_bytes(), 0);
    EXPECT_FALSE(run.engine->has_unreduced_gradients());
    inner.barrier({.unit = "the other queue goes on"});
  });
  EXPECT_EQ(failed, 2);
}

TEST(ReduceScatterGroupFailure, OfARankEndsTheOthers) {
  for (int thrower = 0; thrower < 3; ++thrower) {
    EXPECT_THROW(comm::run_ranks_as_threads(3,
                                            [&](comm::Communicator& rank) {
                                              ChainRun run(rank, with_group());
                                              run.step();
                                              if (rank.rank() == thrower) throw std::logic_error("gave up");
                                              run.step();
                                              run.step();
                                            }),
                 std::logic_error);
  }
}

TEST(ReduceScatterGroupFailure, OfAConnectedRankIsAPeerLostOnTheOthers) {
  for (const char* backend : {"shm", "gloo"}) {
    std::atomic<int> lost = 0;
    testing::run_ranks_over(backend, {.world_size = 3}, [&](std::shared_ptr<comm::Communicator>& rank) {
      ChainRun run(*rank, with_group());
      run.step();
      if (rank->rank() == 2) return;  // its connections close
      try {
        for (;;) run.step();
      } catch (const util::Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::kPeerLost) << error.what();
        ++lost;
      }
      run.engine->reset();
    });
    EXPECT_EQ(lost, 2) << backend;
  }
}

}  // namespace
}  // namespace fsdp::shard
