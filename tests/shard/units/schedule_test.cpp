// The order in which units are gathered, freed and reduced changes no bit of losses, norms and weights; nor
// does the timing of the communication stream.

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "base/util/error.h"
#include "support/sharded_run.h"

namespace fsdp::shard {
namespace {

using testing::RunPlan;
using testing::RunResult;

RunPlan schedule_plan() {
  RunPlan plan;
  plan.model = testing::tiny_options("gpt2");
  plan.shard.min_num_params = 300;
  plan.max_norm = 0.5;
  return plan;
}

RunPlan without_any_overlap() {
  RunPlan plan = schedule_plan();
  plan.shard.forward_prefetch = "none";
  plan.shard.backward_prefetch = "none";
  plan.interpose = [](comm::Communicator& inner) {
    return std::make_shared<testing::LockstepCommunicator>(inner);
  };
  return plan;
}

TEST(Schedule, PrefetchChangesNoBit) {
  for (const char* strategy : {"full_shard", "shard_grad_op"}) {
    for (const char* recompute : {"", "block"}) {
      RunPlan plan = without_any_overlap();
      plan.shard.strategy = strategy;
      if (*recompute) plan.recompute = {recompute};
      RunResult expected = train_sharded(3, plan);
      plan.interpose = nullptr;
      for (const char* forward : {"none", "implicit", "explicit"}) {
        for (const char* backward : {"none", "pre", "post"}) {
          for (bool limit : {true, false}) {
            if (!limit && std::string(forward) == "none") continue;
            plan.shard.forward_prefetch = forward;
            plan.shard.backward_prefetch = backward;
            plan.shard.limit_all_gathers = limit;
            expect_identical_runs(
                train_sharded(3, plan), expected,
                concat(strategy, ", ", forward, ", ", backward, limit ? ", limited " : ", ", recompute));
          }
        }
      }
    }
  }
}

TEST(Schedule, ReshardingChangesNoBit) {
  RunPlan plan = without_any_overlap();
  RunResult expected = train_sharded(2, plan);
  plan.interpose = nullptr;
  for (const char* prefetch : {"none", "explicit"}) {
    for (bool reshard : {true, false}) {
      for (bool last : {true, false}) {
        for (bool root : {true, false}) {
          for (const char* kept : {"", "*.0", "*.1*"}) {
            plan.shard.forward_prefetch = prefetch;
            plan.shard.backward_prefetch = *prefetch == 'n' ? "none" : "pre";
            plan.shard.reshard_after_forward = reshard;
            plan.shard.reshard_last_after_forward = reshard && last;
            plan.shard.reshard_root_after_forward = reshard && root;
            plan.shard.keep_after_forward.clear();
            if (*kept && reshard) plan.shard.keep_after_forward = {kept};
            expect_identical_runs(train_sharded(2, plan), expected,
                                  concat(prefetch, ' ', reshard, last, root, " keeping ", kept));
          }
        }
      }
    }
  }
}

TEST(Schedule, RecomputationAndHostMemoryChangeNoBit) {
  RunPlan plan = schedule_plan();
  RunResult expected = train_sharded(2, plan);
  for (const char* recompute : {"", "block", "feed_forward", "attention"}) {
    for (bool offload : {false, true}) {
      for (bool grads : {false, true}) {
        plan.recompute.clear();
        if (*recompute) plan.recompute = {recompute};
        plan.shard.cpu_offload = offload;
        plan.shard.move_grads_to_cpu = offload && grads;
        expect_identical_runs(train_sharded(2, plan), expected, concat(recompute, offload, grads));
      }
    }
  }
}

TEST(Schedule, ASlowCommunicationStreamChangesNoBit) {
  for (const char* strategy : {"full_shard", "shard_grad_op", "no_shard"}) {
    RunPlan plan = without_any_overlap();
    plan.shard.strategy = strategy;
    plan.accumulation = 2;
    RunResult expected = train_sharded(3, plan);
    for (const char* prefetch : {"none", "implicit", "explicit"}) {
      bool gathers = plan.shard.strategy != "no_shard";
      if (!gathers && std::string(prefetch) == "explicit") continue;
      for (int where = 1; where <= 3; ++where) {
        plan.shard.forward_prefetch = prefetch;
        plan.shard.backward_prefetch = "pre";
        plan.shard.limit_all_gathers = where == 1 || !gathers || std::string(prefetch) == "none";
        plan.interpose = [where](comm::Communicator& inner) {
          bool late = inner.rank() != 1;  // rank 1 waits for the others
          return late ? testing::delayed(inner, where & 1, where & 2) : testing::borrowed(inner);
        };
        expect_identical_runs(train_sharded(3, plan), expected,
                              concat(strategy, ", ", prefetch, ", delay ", where));
      }
    }
  }
}

TEST(Schedule, ASlowCommunicationStreamChangesNoBitWithoutSync) {
  RunPlan plan = without_any_overlap();
  plan.accumulation = 3;
  plan.no_sync = true;
  RunResult expected = train_sharded(2, plan);
  plan.shard.forward_prefetch = "explicit";
  plan.shard.backward_prefetch = "pre";
  plan.interpose = [](comm::Communicator& inner) { return testing::delayed(inner, true, true); };
  expect_identical_runs(train_sharded(2, plan), expected, "no_sync");
  plan.recompute = {"block"};
  expect_identical_runs(train_sharded(2, plan), expected, "no_sync and recomputation");
}

TEST(Schedule, ALateOptimizerChangesNoBit) {
  for (const char* prefetch : {"none", "implicit", "explicit"}) {
    RunPlan plan = schedule_plan();
    plan.shard.forward_prefetch = prefetch;
    plan.optimizer = optim::OptimizerOptions{};
    plan.learning_rate = 0.01;
    RunResult expected = train_sharded(3, plan);
    plan.before_optimizer = [](int rank, int64_t step) {
      std::this_thread::sleep_for(std::chrono::milliseconds((rank + step) % 3 * 3));
    };
    expect_identical_runs(train_sharded(3, plan), expected, prefetch);
  }
}

}  // namespace
}  // namespace fsdp::shard
