// Shards and gradients in host memory: the streams of their copies, and the use of gradients on arrival.

#include "shard/engine/offload_streams.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/util/error.h"
#include "support/chain_run.h"
#include "support/fake_collectives.h"
#include "support/sharded_run.h"
#include "support/told_step.h"

namespace fsdp::shard {
namespace {

using testing::ChainRun;
using testing::Entry;
using testing::FakeDevice;
using ::testing::HasSubstr;
using testing::RunPlan;
using testing::RunResult;
using testing::StreamName;
using testing::train_sharded;

ShardOptions offloaded(ShardOptions options) {
  options.cpu_offload = options.move_grads_to_cpu = true;
  return options;
}

TEST(Offload, ShardsAndTheirGradientsLieWhereTheOptionsSay) {
  comm::run_ranks_as_threads(2, [](comm::Communicator& rank) {
    for (bool on_device : {false, true}) {
      for (bool offload : {false, true}) {
        for (bool grads : {false, offload}) {
          const auto communicator = on_device ? testing::on_fake_device(rank) : testing::borrowed(rank);
          testing::ChainStage chain(3, 4);
          testing::move_parameters(chain, communicator->device());
          ShardOptions options = testing::every_matrix();
          options.cpu_offload = offload;
          options.move_grads_to_cpu = grads;
          auto engine = fully_shard(chain, options, comm::Mesh({}, communicator));
          chain.forward(at::ones({2, 4}).to(communicator->device())).sum().backward();
          for (const auto& unit : engine->units()) {
            const UnitStorage& storage = unit->storage();
            EXPECT_EQ(storage.shard().is_cpu(), offload || !on_device) << unit->name() << offload;
            EXPECT_EQ(storage.shard_gradient().is_cpu(), grads || !on_device) << unit->name() << grads;
            EXPECT_EQ(storage.unsharded().is_cpu(), !on_device) << unit->name();
          }
        }
      }
    }
  });
}

TEST(Offload, AddsMicroBatchesOnTheShardsInHostMemory) {
  comm::run_ranks_as_threads(2, [](comm::Communicator& rank) {
    for (bool grads : {false, true}) {
      const auto communicator = testing::on_fake_device(rank);
      ShardOptions options = testing::every_matrix();
      options.cpu_offload = true;
      options.move_grads_to_cpu = grads;
      ChainRun run(*communicator, options, 3);
      const std::vector<at::Tensor> once = run.gradients_of_a_step();
      run.calls.clear();
      run.step();
      EXPECT_EQ(run.calls.count("reduce_scatter"), 4) << "the micro-batch is reduced";
      const std::vector<at::Tensor> twice = run.gradients();
      for (size_t i = 0; i < once.size(); ++i) {
        EXPECT_EQ(twice[i].is_cpu(), grads);
        EXPECT_TRUE(run.engine->units()[i]->storage().shard().is_cpu());
        EXPECT_TRUE(at::allclose(twice[i].cpu(), 2 * once[i].cpu(), 1e-6, 1e-7));
      }
    }
  });
}

// ---- streams

constexpr StreamName kCompute{0, 0};

class HostLinkStreams : public ::testing::Test {
 protected:
  /// The log of two ranks that train on fake devices.
  static std::vector<Entry> log_of_training() {
    RunPlan plan;
    plan.model.fused_kernels = false;
    plan.shard = offloaded({});
    plan.shard.min_num_params = 1;
    plan.global_rows = 8;
    plan.interpose = testing::on_fake_device;
    FakeDevice::get().begin();
    train_sharded(2, plan);
    EXPECT_EQ(FakeDevice::get().report(), "");
    return FakeDevice::get().log();
  }

  /// The last operation before `entry` for which `matches`.
  template <typename Matches>
  static std::optional<size_t> last_before(const std::vector<Entry>& log, size_t entry, Matches matches) {
    while (entry-- > 0) {
      if (log[entry].kind == Entry::Kind::kOperation && matches(log[entry])) return entry;
    }
    return std::nullopt;
  }

  /// Whether between the entries an event of the first one's stream is recorded for which the second one's
  /// waits.
  static bool waits(const std::vector<Entry>& log, size_t first, size_t second) {
    std::set<int64_t> events;
    for (size_t i = first + 1; i < second; ++i) {
      const Entry& entry = log[i];
      if (entry.kind == Entry::Kind::kRecord && entry.stream == log[first].stream) events.insert(entry.event);
      if (entry.kind == Entry::Kind::kWait && entry.stream == log[second].stream &&
          events.contains(entry.event)) {
        return true;
      }
    }
    return false;
  }

  static bool overlap(const std::vector<testing::MemoryRange>& some,
                      const std::vector<testing::MemoryRange>& others) {
    for (const auto& one : some) {
      for (const auto& other : others) {
        if (one.overlaps(other)) return true;
      }
    }
    return false;
  }
};

TEST_F(HostLinkStreams, ShardsAreCopiedBesideComputationAndCollectives) {
  const std::vector<Entry> log = log_of_training();
  std::set<StreamName> copy_streams;
  int gathers = 0;
  for (size_t i = 0; i < log.size(); ++i) {
    const Entry& gather = log[i];
    const bool reads_shard = gather.kind == Entry::Kind::kOperation && gather.stream.device == 0 &&
                             gather.name.starts_with("all_gather of") && !gather.reads.empty();
    if (!reads_shard) continue;
    const auto copy = last_before(log, i, [&](const Entry& entry) {
      return entry.stream.device == 0 && overlap(entry.writes, gather.reads);
    });
    ASSERT_TRUE(copy.has_value()) << gather.name;
    if (log[*copy].stream == kCompute) continue;  // whole weights at the end, for the test
    ++gathers;
    EXPECT_EQ(log[*copy].name, "aten::copy_");
    EXPECT_NE(log[*copy].stream, gather.stream);
    EXPECT_TRUE(waits(log, *copy, i)) << gather.name;
    copy_streams.insert(log[*copy].stream);
  }
  EXPECT_GT(gathers, 20);
  ASSERT_EQ(copy_streams.size(), 1u);

  // The memory to which they are copied is new at first, but not that of the compute (Engine::released_).
  std::set<int64_t> of_computation;
  int waits_for_computation = 0;
  for (const Entry& entry : log) {
    if (entry.kind == Entry::Kind::kRecord && entry.stream == kCompute) of_computation.insert(entry.event);
    if (entry.kind == Entry::Kind::kWait && entry.stream == *copy_streams.begin()) {
      waits_for_computation += of_computation.contains(entry.event) ? 1 : 0;
    }
  }
  EXPECT_EQ(waits_for_computation, 0);
}

TEST_F(HostLinkStreams, GradientsAreCopiedBesideComputationAndCollectives) {
  const std::vector<Entry> log = log_of_training();
  std::set<StreamName> copy_streams, collective_streams;
  for (size_t i = 0; i < log.size(); ++i) {
    const Entry& copy = log[i];
    const bool to_host = copy.kind == Entry::Kind::kOperation && copy.stream.device == 0 &&
                         copy.name == "aten::copy_" && copy.writes.empty();
    if (!to_host || copy.stream == kCompute) continue;
    const auto reduction = last_before(log, i, [&](const Entry& entry) {
      return entry.stream.device == 0 && overlap(entry.writes, copy.reads);
    });
    ASSERT_TRUE(reduction.has_value());
    EXPECT_TRUE(waits(log, *reduction, i)) << log[*reduction].name;
    copy_streams.insert(copy.stream);
    collective_streams.insert(log[*reduction].stream);
  }
  ASSERT_EQ(copy_streams.size(), 1u);
  EXPECT_FALSE(collective_streams.contains(*copy_streams.begin()));
  EXPECT_FALSE(collective_streams.contains(kCompute));
}

// ---- gradients as they arrive

RunPlan plan_with(const std::string& optimizer) {
  RunPlan plan;
  plan.shard.min_num_params = 1;
  plan.global_rows = 8;
  plan.optimizer.emplace();
  plan.optimizer->name = optimizer;
  plan.optimizer->momentum = optimizer == "sgd" ? 0.9 : 0;
  plan.optimizer->ema_decay = 0.5;
  plan.learning_rate = 0.01;
  return plan;
}

class UpdatesInBackward : public ::testing::TestWithParam<std::string> {
 protected:
  static void expect_no_bit_to_change(RunPlan plan, const std::string& what, int ranks = 2) {
    plan.updates_in_backward = false;
    const RunResult after = train_sharded(ranks, plan);
    plan.updates_in_backward = true;
    expect_identical_runs(train_sharded(ranks, plan), after, what);
  }
};

TEST_P(UpdatesInBackward, ChangeNoBit) {
  RunPlan plan = plan_with(GetParam());
  for (const char* recompute : {"", "block"}) {
    for (const char* prefetch : {"none", "pre", "post"}) {
      plan.recompute.clear();
      if (*recompute) plan.recompute = {recompute};
      plan.shard.backward_prefetch = prefetch;
      expect_no_bit_to_change(plan, concat(recompute, prefetch));
    }
  }
  plan.accumulation = 2;
  expect_no_bit_to_change(plan, "accumulation");
  plan.no_sync = true;
  expect_no_bit_to_change(plan, "accumulation without sync");
  plan.frozen = {"*layers.1*"};
  expect_no_bit_to_change(plan, "frozen block");
}

TEST_P(UpdatesInBackward, ChangeNoBitWhereParametersAreTheShard) {
  for (int ranks : {1, 2}) {
    RunPlan plan = plan_with(GetParam());
    plan.shard.strategy = "no_shard";
    const auto what = [ranks](const char* how) { return concat(ranks, " ranks, ", how); };
    expect_no_bit_to_change(plan, what("plain"), ranks);
    plan.model.tie_word_embeddings = true;
    plan.recompute = {"block"};
    expect_no_bit_to_change(plan, what("tied, recomputed"), ranks);
    plan.accumulation = 2;
    expect_no_bit_to_change(plan, what("accumulation"), ranks);
    plan.shard.param_storage = plan.shard.mixed_precision.param_dtype = "bfloat16";
    expect_no_bit_to_change(plan, what("bfloat16"), ranks);
  }
}

TEST_P(UpdatesInBackward, ChangeNoBitWithGroupsOfRanks) {
  for (const char* optimizer_of : {"replicated", "global"}) {
    RunPlan plan = plan_with(GetParam());
    plan.shard.strategy = "hybrid_shard";
    plan.shard.hybrid_optimizer = optimizer_of;
    plan.mesh = {.dcn = 2, .data = 2};
    expect_no_bit_to_change(plan, optimizer_of, 4);
  }
}

TEST_P(UpdatesInBackward, ChangeNoBitOnADevice) {
  RunPlan plan = plan_with(GetParam());
  plan.shard = offloaded(plan.shard);
  plan.model.fused_kernels = false;
  plan.interpose = testing::on_fake_device;
  for (int64_t accumulation : {1, 2}) {
    plan.accumulation = accumulation;
    FakeDevice::get().begin();
    expect_no_bit_to_change(plan, concat("accumulation ", accumulation));
    EXPECT_EQ(FakeDevice::get().report(), "");
  }
  plan.recompute = {"block"};
  plan.shard.mixed_precision.param_dtype = plan.shard.mixed_precision.reduce_dtype = "bfloat16";
  plan.shard.mixed_precision.keep_low_precision_grads = true;
  FakeDevice::get().begin();
  expect_no_bit_to_change(plan, "bfloat16");
  EXPECT_EQ(FakeDevice::get().report(), "");
}

INSTANTIATE_TEST_SUITE_P(Optimizers, UpdatesInBackward, ::testing::Values("adamw", "adam", "sgd", "lion"),
                         [](const auto& info) { return info.param; });

/// With the parameter, on fake devices.
class GradientUses : public ::testing::TestWithParam<bool> {
 protected:
  static std::shared_ptr<comm::Communicator> of(comm::Communicator& rank) {
    return GetParam() ? testing::on_fake_device(rank) : testing::borrowed(rank);
  }
};

INSTANTIATE_TEST_SUITE_P(Devices, GradientUses, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "OnADevice" : "OnTheHost"; });

TEST_P(GradientUses, BeginsBeforeTheFirstUnitHasAGradient) {
  comm::run_ranks_as_threads(2, [](comm::Communicator& rank) {
    const auto communicator = of(rank);
    ChainRun run(*communicator, offloaded(testing::every_matrix()));
    std::promise<void> last_unit;
    std::future<void> used = last_unit.get_future();
    // Were the gradients used after backward, this would wait in vain.
    run.chain.layer(0).weight().register_hook([&](const at::Tensor& gradient) {
      EXPECT_EQ(used.wait_for(std::chrono::seconds(60)), std::future_status::ready);
      return gradient;
    });
    std::vector<size_t> order;
    const GradientUse use(*run.engine, [&](size_t unit) {
      EXPECT_TRUE(run.engine->units()[unit]->storage().shard_gradient().defined());
      order.push_back(unit);
      if (unit == 4) last_unit.set_value();
    });
    run.step();
    EXPECT_EQ(order, (std::vector<size_t>{4, 3, 2, 1, 0}));
  });
}

TEST_P(GradientUses, ComesOnceWhenAUnitThatIsUsedAgainIsDone) {
  for (const std::vector<size_t>& order : {std::vector<size_t>{0, 1, 1, 2, 3}, {0, 1, 2, 0, 3, 2}}) {
    for (const testing::Names& recompute : {testing::Names{}, testing::Names{"block"}}) {
      comm::run_ranks_as_threads(2, [&](comm::Communicator& rank) {
        const auto communicator = of(rank);
        ChainRun run(*communicator, offloaded(testing::every_matrix("none", "pre")), 4, recompute);
        run.chain.order = order;
        for (int step = 0; step < 2; ++step) {
          run.engine->zero_gradients();
          std::vector<at::Tensor> seen(run.engine->units().size());
          const GradientUse use(*run.engine, [&](size_t unit) {
            EXPECT_FALSE(seen[unit].defined()) << unit;
            seen[unit] = run.engine->units()[unit]->storage().shard_gradient().clone();
          });
          run.step();
          EXPECT_TRUE(testing::identical(seen, run.gradients()));
        }
      });
    }
  }
}

TEST_P(GradientUses, ThatThrowsEndsBackwardWithTheUnitsName) {
  comm::run_ranks_as_threads(2, [](comm::Communicator& rank) {
    const auto communicator = of(rank);
    ChainRun good(*communicator, offloaded(testing::every_matrix()));
    ChainRun run(*communicator, offloaded(testing::every_matrix()));
    const std::vector<at::Tensor> expected = good.gradients_of_a_step();
    for (size_t place : {4u, 2u, 0u}) {
      {
        const GradientUse use(*run.engine, [&](size_t unit) {
          if (unit == place) throw util::Error(ErrorKind::kIo, "thrown by a test");
        });
        try {
          run.step();
          ADD_FAILURE() << "went on";
        } catch (const util::Error& error) {
          EXPECT_EQ(error.kind(), ErrorKind::kIo);
          EXPECT_THAT(error.what(), HasSubstr("thrown by a test"));
          EXPECT_THAT(error.what(), HasSubstr("unit " + run.engine->units()[place]->name()));
        }
      }
      run.engine->reset();
      EXPECT_EQ(run.engine->live_unsharded_bytes(), 0);
      EXPECT_TRUE(testing::identical(run.gradients_of_a_step(), expected));
    }
  });
}

TEST_P(GradientUses, LeavesOutUnitsWithoutAGradientAndPassesWithoutSync) {
  comm::run_ranks_as_threads(2, [](comm::Communicator& rank) {
    const auto communicator = of(rank);
    ChainRun run(*communicator, offloaded(testing::every_matrix()));
    run.chain.order = {0, 2};
    std::vector<size_t> order;
    const GradientUse use(*run.engine, [&](size_t unit) { order.push_back(unit); });
    {
      const NoSync no_sync(*run.engine);
      run.step();
    }
    EXPECT_TRUE(order.empty());
    run.step();
    EXPECT_EQ(order, (std::vector<size_t>{3, 1, 0}));
  });
}

// What a call launches in the current stream reads the complete gradient, without a wait of the host.
TEST(GradientUseOnADevice, RunsInTheStreamThatCompletesTheGradient) {
  for (int world : {1, 2}) {
    comm::run_ranks_as_threads(world, [](comm::Communicator& rank) {
      const auto communicator = testing::on_fake_device(rank);
      ChainRun run(*communicator, testing::every_matrix());
      std::map<size_t, at::Tensor> seen;
      {
        const GradientUse use(*run.engine, [&](size_t unit) {
          seen[unit] = run.engine->units()[unit]->storage().shard_gradient().clone();
        });
        run.step();
      }
      EXPECT_EQ(seen.size(), run.engine->units().size());
      for (const auto& [unit, gradient] : seen) {
        const at::Tensor& complete = run.engine->units()[unit]->storage().shard_gradient();
        EXPECT_TRUE(at::equal(gradient.cpu(), complete.cpu())) << unit;
      }
    });
  }
}

}  // namespace
}  // namespace fsdp::shard
