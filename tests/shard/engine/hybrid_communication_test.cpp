// What hybrid sharding communicates: reduce-scatters within slices, all-reduces between them.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <map>
#include <string>
#include <vector>

#include "base/util/error.h"
#include "shard/hybrid_fixtures.h"
#include "support/connected_ranks.h"
#include "support/sharded_run.h"

namespace fsdp::shard {
namespace {

using testing::ChainRun;
using ::testing::HasSubstr;

/// Calls of a third step over a mesh of 2 x 2, with `no_sync` of the two before it too; the chain is four
/// matrices and the root.
std::vector<testing::CountingCommunicator::Call> calls_of_a_step(const ShardOptions& options,
                                                                 bool no_sync = false) {
  std::vector<testing::CountingCommunicator::Call> calls;
  comm::run_ranks_as_threads(4, [&](comm::Communicator& communicator) {
    ChainRun run(communicator, options, 4, {}, {.dcn = 2, .data = 2});
    for (int step = 0; step < 3; ++step) {
      if (!no_sync) {
        run.calls.clear();
        run.engine->reset_counters();
      }
      run.engine->set_requires_gradient_sync(!no_sync || step == 2);
      run.step();
    }
    if (communicator.rank() == 0) calls = run.calls.calls();
    Traffic traffic = run.engine->traffic();
    EXPECT_EQ(traffic.all_gathers, run.calls.count("all_gather"));
    EXPECT_EQ(traffic.reduce_scatters, run.calls.count("reduce_scatter"));
    EXPECT_EQ(traffic.all_reduces, run.calls.count("all_reduce"));
    EXPECT_EQ(traffic.all_reduce_bytes, traffic.reduce_scatter_bytes);
  });
  return calls;
}

TEST(HybridCommunication, AddsAnAllReduceOfTheShardToEveryReduceScatter) {
  for (const char* strategy : kHybrids) {
    int64_t gathers = 0;
    std::vector<std::string> scattered, reduced;
    for (const auto& call : calls_of_a_step(hybrid_matrices(strategy))) {
      gathers += call.op == "all_gather";
      if (call.op == "reduce_scatter") scattered.push_back(concat(call.unit, " ", call.numel));
      if (call.op == "all_reduce") reduced.push_back(concat(call.unit, " ", call.numel));
    }
    // Four matrices of 16 and a bias of 4 over two ranks.
    EXPECT_EQ(scattered, (testing::Names{"layers.3 8", "layers.2 8", "layers.1 8", "layers.0 8", "root 2"}));
    EXPECT_EQ(reduced, scattered);
    EXPECT_EQ(gathers, std::string(strategy) == "hybrid_shard" ? 8 : 5);
  }
}

TEST(HybridCommunication, WithoutSyncReducesInTheLastPassOnly) {
  std::map<std::string, int64_t> counts;
  for (const auto& call : calls_of_a_step(hybrid_matrices(), /*no_sync=*/true)) ++counts[call.op];
  EXPECT_EQ(counts["reduce_scatter"], 5);
  EXPECT_EQ(counts["all_reduce"], 5);
}

TEST(HybridCommunication, LeavesTheAllReduceToTheLastMicroBatch) {
  struct Case {
    const char *strategy, *optimizer;
    bool moves;
    int64_t in_slices, across;  ///< collectives of three micro-batches
  };
  for (const Case& each : {Case{"hybrid_shard", "replicated", false, 15, 5},
                           {"hybrid_shard_zero2", "replicated", false, 15, 5},
                           {"no_shard", "replicated", false, 0, 5},
                           {"hybrid_shard", "replicated", true, 15, 15},
                           {"hybrid_shard", "global", false, 30, 0}}) {
    comm::run_ranks_as_threads(4, [&each](comm::Communicator& communicator) {
      ShardOptions options = hybrid_matrices(each.strategy);
      options.hybrid_optimizer = each.optimizer;
      options.cpu_offload = options.move_grads_to_cpu = each.moves;
      const auto gradients = [&](bool leaves) {
        ChainRun run(communicator, options, 4, {}, {.dcn = 2, .data = 2});
        for (int step = 0; step < 2; ++step) {
          run.calls.clear();
          run.engine->zero_gradients();
          for (int micro = 0; micro < 3; ++micro) {
            run.engine->set_requires_all_reduce(!leaves || micro == 2);
            run.step();
          }
        }
        if (leaves) {
          EXPECT_EQ(run.calls.count("reduce_scatter"), each.in_slices) << each.strategy;
          EXPECT_EQ(run.calls.count("all_reduce"), each.across) << each.strategy;
        }
        return run.gradients();
      };
      const auto actual = gradients(true), expected = gradients(false);
      for (size_t i = 0; i < actual.size(); ++i) {
        EXPECT_TRUE(at::allclose(actual[i], expected[i], 1e-5, 1e-7)) << each.strategy << i;
      }
    });
  }
}

TEST(HybridCommunication, RefusesSumsOfASliceOnTopOfAMeanOverAll) {
  comm::run_ranks_as_threads(4, [](comm::Communicator& communicator) {
    ChainRun run(communicator, hybrid_matrices(), 4, {}, {.dcn = 2, .data = 2});
    run.step();
    run.engine->set_requires_all_reduce(false);
    try {
      run.step();
      ADD_FAILURE() << "expected an error";
    } catch (const std::exception& error) {
      EXPECT_THAT(error.what(), HasSubstr("zero_gradients()"));
    }
    run.engine->reset();
  });
}

TEST(HybridCommunication, IsInTheTraceWithTheShardAsPayload) {
  comm::run_ranks_as_threads(4, [](comm::Communicator& communicator) {
    auto trace = std::make_shared<comm::Trace>();
    testing::ChainStage chain(4, 4);
    comm::Mesh mesh({.dcn = 2, .data = 2},
                    comm::make_tracing_communicator(testing::borrowed(communicator), trace));
    auto engine = testing::shard_under_test(chain, hybrid_matrices(), mesh, trace);
    trace->begin_step(1);
    chain.forward(at::ones({2, 4})).sum().backward();
    std::map<std::string, int64_t> counts, bytes;
    for (const auto& event : trace->events(1)) {
      if (event.is_buffer() || event.op == "all_gather") continue;
      ++counts[event.op];
      bytes[event.op] += event.bytes;
      EXPECT_TRUE(event.done_us.has_value()) << event.op << event.unit;
    }
    EXPECT_EQ(counts, (std::map<std::string, int64_t>{{"all_reduce", 5}, {"reduce_scatter", 5}}));
    EXPECT_EQ(bytes["reduce_scatter"], 4 * (4 * 8 + 2));
    EXPECT_EQ(bytes["all_reduce"], bytes["reduce_scatter"]);
  });
}

// The all-reduce of the first unit of backward cannot end before the reduce-scatter of the last has ended:
// if anything but the end of backward waited for it, this would hang.
TEST(HybridCommunication, GoesOnBesideAnAllReduceThatIsLate) {
  comm::run_ranks_as_threads(4, [](comm::Communicator& inner) {
    auto last_is_scattered = std::make_shared<std::promise<void>>();
    std::shared_future<void> when = last_is_scattered->get_future().share();
    testing::InterposedCommunicator interposed(
        inner,
        [when](const std::string& op, const std::string& unit, const std::string&) {
          if (op == "all_reduce" && unit == "layers.3") when.wait();
        },
        [last_is_scattered](const std::string& op, const std::string& unit, const std::string&) {
          if (op == "reduce_scatter" && unit == "layers.0") last_is_scattered->set_value();
        });
    ChainRun run(interposed, hybrid_matrices(), 4, {}, {.dcn = 2, .data = 2});
    run.step();
    for (const auto& unit : run.engine->units()) {
      EXPECT_TRUE(unit->storage().shard_gradient().defined()) << unit->name();
    }
    inner.barrier({.unit = "end"});
  });
}

TEST(HybridCommunication, NeedsNoMoreUnshardedMemoryThanFullShard) {
  auto peak = [](int world, const char* strategy, const comm::MeshOptions& mesh) {
    std::atomic<int64_t> peak = 0;
    comm::run_ranks_as_threads(world, [&](comm::Communicator& inner) {
      testing::LockstepCommunicator lockstep(inner);
      ChainRun run(lockstep, hybrid_matrices(strategy), 4, {}, mesh);
      for (int step = 0; step < 2; ++step) run.step();
      if (inner.rank() == 0) peak = run.engine->peak_unsharded_bytes();
      EXPECT_EQ(run.engine->live_unsharded_bytes(), 0);
    });
    return peak.load();
  };
  EXPECT_EQ(peak(4, "hybrid_shard", {.dcn = 2, .data = 2}), peak(2, "full_shard", {}));
}

}  // namespace
}  // namespace fsdp::shard
