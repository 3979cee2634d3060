#include "tools/simulate/step_simulation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "shard/units/nominal_pass.h"
#include "tools/plan/plan.h"
#include "tools/plan/time.h"
#include "tools/simulate/step_program.h"

namespace fsdp::simulate {
namespace {

using CommandKind = shard::Command::Action;

/// Three units of 1000 bytes a rank over 4 ranks.
std::vector<shard::UnitSizes> three_units() {
  std::vector<shard::UnitSizes> units;
  for (const char* name : {"root", "model.layers.0", "model.layers.1"}) {
    shard::UnitSizes& unit = units.emplace_back();
    unit.name = name;
    unit.shard_numel = 250;
    unit.numel = unit.gathered_numel = unit.unsharded_numel = 1000;
    unit.groups = {.shards = 4};
  }
  units.front().is_root = true;
  return units;
}

/// A collective of a unit takes a second: three other ranks' 1000 bytes.
Cluster slow_links() {
  Cluster cluster{.mesh = {.data = 4}, .backend = comm::Backend::kMpi};
  cluster.network.inside.bytes_per_second = 3000;
  return cluster;
}

Operation computes(double seconds) {
  Operation operation{.kind = OperationKind::kCompute};
  operation.seconds[KernelClass::kProduct] = seconds;
  return operation;
}
Operation command(CommandKind kind, size_t unit) {
  return {.kind = OperationKind::kCommand,
          .command = {.kind = kind, .unit = unit, .pass = shard::Pass::kForward}};
}

StepTimes simulated(std::vector<Operation> operations, const Cluster& cluster,
                    const StepOptions& options = {}) {
  const std::vector<shard::UnitSizes> units = three_units();
  return simulate_step({.sections = {{.operations = std::move(operations)}}}, units, cluster, options);
}

TEST(SimulatedStep, HidesAGatherExactlyWhereComputeIsLongEnough) {
  for (const double compute : {0.0, 0.25, 0.999, 1.0, 1.5}) {
    const StepTimes times = simulated({command(CommandKind::kGather, 1), computes(compute),
                                       command(CommandKind::kWaitForGather, 1), computes(1)},
                                      slow_links());
    EXPECT_NEAR(times.exposed, std::max(0.0, 1 - compute), 1e-12) << compute;
    EXPECT_NEAR(times.step, std::max(1.0, compute) + 1, 1e-12);
    EXPECT_NEAR(times.communication, 1, 1e-12);
  }
}

TEST(SimulatedStep, MakesTwoCollectivesOnOneLinkTakeTwiceAsLong) {
  const std::vector<Operation> both = {command(CommandKind::kReduce, 1), command(CommandKind::kGather, 2),
                                       command(CommandKind::kWaitForGather, 2)};
  const StepTimes apart = simulated(both, slow_links(), {.reduce_scatter_group = true});
  EXPECT_NEAR(apart.step, 2, 1e-12) << "beside each other, each with half of the link";
  EXPECT_NEAR(apart.communication, 4, 1e-12);
  const StepTimes in_turn = simulated(both, slow_links());
  EXPECT_NEAR(in_turn.step, 2, 1e-12);
  EXPECT_NEAR(in_turn.communication, 2, 1e-12);
}

TEST(SimulatedStep, LeavesOutTheReplicasWhereAReductionEndsInTheSlice) {
  std::vector<shard::UnitSizes> units = three_units();
  for (shard::UnitSizes& unit : units) unit.groups.replicas = 2;
  Cluster cluster = slow_links();
  cluster.mesh.dcn = 2;
  cluster.ranks_of_host = 4;
  cluster.network.slices.bytes_per_second = 500;
  const auto seconds = [&](CommandKind reduction) {
    const std::vector<Operation> operations = {command(reduction, 1),
                                               command(CommandKind::kWaitForReduction, 1)};
    return simulate_step({.sections = {{.operations = operations}}}, units, cluster, {}).step;
  };
  EXPECT_NEAR(seconds(CommandKind::kReduceInSlice), 1, 1e-9);
  EXPECT_NEAR(seconds(CommandKind::kReduce), 1 + 2, 1e-9) << "two ranks' 1000 bytes";
}

TEST(SimulatedStep, CountsWhatAHostReceivesFromOthers) {
  Cluster cluster = slow_links();
  const std::vector<Operation> operations = {command(CommandKind::kGather, 1),
                                             command(CommandKind::kWaitForGather, 1)};
  EXPECT_EQ(simulated(operations, cluster).bytes_from_other_hosts, 0) << "all ranks are on one host";
  cluster.ranks_of_host = 2;
  EXPECT_EQ(simulated(operations, cluster).bytes_from_other_hosts, 2 * 2 * 1000)
      << "two ranks, of two others";
  cluster.backend = comm::Backend::kHierarchical;
  EXPECT_EQ(simulated(operations, cluster).bytes_from_other_hosts, 2 * 1000);
  StepOptions options;
  options.slowness = {1, 2};
  EXPECT_EQ(simulated(operations, cluster, options).bytes_from_other_hosts, 2 * 1000)
      << "not once for each kind of ranks";
}

TEST(SimulatedStep, SharesTheCoresOfAHostWithCompute) {
  Cluster cluster = slow_links();
  cluster.backend = comm::Backend::kShm;
  cluster.network.sum_bytes_per_second = 4000;  // a reduction reads 4000 bytes
  const std::vector<Operation> operations = {command(CommandKind::kReduce, 1), computes(1),
                                             command(CommandKind::kWaitForReduction, 1)};
  cluster.cores_of_rank = 1;
  const StepTimes shared = simulated(operations, cluster);
  EXPECT_NEAR(shared.step, 2, 1e-12);
  EXPECT_NEAR(shared.computing, 2, 1e-12);
  cluster.cores_of_rank = 2;
  EXPECT_NEAR(simulated(operations, cluster).step, 1, 1e-12);
  cluster.cores_of_rank = 0.5;
  EXPECT_NEAR(simulated(operations, cluster).step, 4, 1e-12) << "two seconds of half a core each";
}

TEST(SimulatedStep, TransfersMoreSlowlyBesideCompute) {
  Cluster cluster = slow_links();
  cluster.cores_of_rank = 1;
  cluster.network.inside.latency_seconds = 0.5;
  cluster.network.inside.latency_beside_compute = 0.25;
  cluster.network.inside.speed_beside_compute = 0.5;
  const double steps = 2;  // of a gather of four
  const std::vector<Operation> waits = {command(CommandKind::kGather, 1),
                                        command(CommandKind::kWaitForGather, 1)};
  EXPECT_NEAR(simulated(waits, cluster).step, steps * 0.5 + 1, 1e-9);
  const StepTimes beside = simulated({waits[0], computes(10), waits[1]}, cluster);
  EXPECT_NEAR(beside.step, 10, 1e-9) << "the compute is no slower";
  EXPECT_NEAR(beside.communication, steps * 0.75 + 2, 1e-9);
}

TEST(SimulatedStep, WaitsForTheSlowestRanks) {
  const Operation all_reduce{.kind = OperationKind::kCollective,
                             .bytes = 0,
                             .collective = CollectiveKind::kAllReduce,
                             .what = "loss"};
  const StepTimes times = simulated({computes(1), all_reduce}, slow_links(), {.slowness = {1, 3}});
  EXPECT_NEAR(times.step, 3, 1e-12);
  EXPECT_NEAR(times.exposed, 2, 1e-12);
  EXPECT_NEAR(times.exposed_by_obstacle[static_cast<size_t>(Obstacle::kOtherRanks)], 2, 1e-12);
  EXPECT_NEAR(times.exposed_by_kind.at("loss"), 2, 1e-12);
}

TEST(SimulatedStep, IsRecordedAsATraceOfARealOneIs) {
  const StepTimes times = simulated({command(CommandKind::kGather, 1),
                                     command(CommandKind::kWaitForGather, 1),
                                     {.kind = OperationKind::kBegin, .number = 1, .what = "forward"},
                                     computes(2),
                                     {.kind = OperationKind::kEnd, .number = 1, .what = "forward"}},
                                    slow_links(), {.records = true});
  bool has_gather = false, has_compute = false;
  for (const comm::TraceEvent& event : times.events) {
    if (event.op == "all_gather") {
      has_gather = true;
      EXPECT_EQ(event.unit, "model.layers.0");
      EXPECT_EQ(event.bytes, 1000);
      EXPECT_NEAR(event.waited_us(), 1e6, 1e-3);
    }
    if (event.is_compute()) {
      has_compute = true;
      EXPECT_NEAR(event.begin_us(), 1e6, 1e-3);
      EXPECT_NEAR(event.done_us.value_or(0), 3e6, 1e-3);
    }
    EXPECT_TRUE(event.complete()) << event.op;
  }
  EXPECT_TRUE(has_gather && has_compute);
}

// ---- programs

config::Config small_config() {
  config::Config config;
  config.model.num_hidden_layers = 3;
  config.model.hidden_size = 64;
  config.model.intermediate_size = 96;
  config.model.num_attention_heads = config.model.num_key_value_heads = 2;
  config.model.vocab_size = 100;
  config.data.sequence_length = 16;
  config.data.micro_batch_size = 2;
  config.fsdp.min_num_params = 15'000;  // the feed-forwards, and the rest of the layers
  return config;
}

TEST(StepProgram, TimesTheLossOfTheHeadsLogits) {
  const config::Config config = small_config();
  const StepProgram program =
      step_program(config, plan::planned_units(config, {.data = 4}), plan::record_pass(config),
                   {.element_bytes = 4, .loss_bytes_per_second = 1});
  const int64_t tokens = config.data.micro_batch_size * config.data.sequence_length;
  const auto logits = static_cast<double>(tokens * config.model.vocab_size);
  EXPECT_NEAR(program.computed()[KernelClass::kLoss], 4 * logits, 1e-9);
}

class CommandList final : public shard::CommandReader {
 public:
  void read(const shard::Command& command) override { commands.push_back(command); }
  std::vector<shard::Command> commands;
};

TEST(StepProgram, HasTheCommandsOfTheSchedule) {
  for (const std::string prefetch : {"none", "implicit", "explicit"}) {
    for (const bool limits : {true, false}) {
      if (prefetch == "none" && !limits) continue;  // refused: there is nothing to limit
      config::Config config = small_config();
      config.fsdp.forward_prefetch = prefetch;
      config.fsdp.limit_all_gathers = limits;
      const std::vector<shard::UnitSizes> units = plan::planned_units(config, {.data = 4});
      const plan::RecordedPass pass = plan::record_pass(config);
      const StepProgram program = step_program(config, units, pass, {.flops_per_second = 1e12});

      CommandList reader;
      shard::Schedule schedule(config::shard_options(config), shard::scheduled_units(units), reader,
                               pass.on_device());
      const shard::NominalPass nominal(units);
      nominal.run(schedule);
      schedule.forget_gradients();
      reader.commands.clear();
      nominal.run(schedule);
      std::vector<shard::Command> commands;
      for (const Section& section : program.sections) {
        for (const Operation& operation : section.operations) {
          if (operation.kind == OperationKind::kCommand) commands.push_back(operation.command);
        }
      }
      EXPECT_EQ(commands, reader.commands) << prefetch << limits;
    }
  }
}

TEST(StepProgram, RepeatsTheMiddleMicroBatches) {
  config::Config config = small_config();
  config.training.gradient_accumulation_steps = 5;
  const std::vector<shard::UnitSizes> units = plan::planned_units(config, {.data = 4});
  const StepProgram program =
      step_program(config, units, plan::record_pass(config), {.flops_per_second = 1e12});
  ASSERT_EQ(program.sections.size(), 4u) << "the first, the middle, the last, the update";
  EXPECT_EQ(program.sections[1].times, 3);
  config.training.gradient_accumulation_steps = 1;
  const StepProgram once = step_program(config, units, plan::record_pass(config), {.flops_per_second = 1e12});
  EXPECT_NEAR(program.computed().sum(), 5 * once.computed().sum(), 1e-9 * program.computed().sum());
}

/// Where nothing but products takes time and links have no latency, both are the same model.
TEST(StepProgram, TakesAsLongAsPlannedWhereOnlyProductsAndBytesCount) {
  for (const char* prefetch : {"none", "post", "pre"}) {
    config::Config config = small_config();
    config.fsdp.backward_prefetch = prefetch;
    const std::vector<shard::UnitSizes> units = plan::planned_units(config, {.data = 4});
    const plan::RecordedPass pass = plan::record_pass(config);
    const plan::MachineSpeed speed = {.flops_per_second = 1e6, .bytes_per_second = 1e5};
    const plan::TimePlan planned = plan_time(config, units, speed, pass);
    Cluster cluster = slow_links();
    cluster.network.inside.bytes_per_second = speed.bytes_per_second;
    const StepTimes times =
        simulate_step(step_program(config, units, pass, {.flops_per_second = 1e6}), units, cluster);
    EXPECT_NEAR(times.computing, planned.compute, 1e-6 * planned.compute) << prefetch;
    EXPECT_NEAR(times.step, planned.step(), 1e-3 * planned.step()) << prefetch;
  }
}

TEST(StepProgram, CountsTheBytesOfTheUpdate) {
  const config::Config config = small_config();
  const std::vector<shard::UnitSizes> units = plan::planned_units(config, {.data = 4});
  double bytes = 0, elements = 0;
  for (const shard::UnitSizes& unit : units) {
    bytes += update_bytes(config, unit);
    elements += static_cast<double>(unit.shard_numel);
  }
  EXPECT_DOUBLE_EQ(bytes, 28 * elements) << "two averages and the weight read and written, the gradient read";
  ComputeTable table{.flops_per_second = 1e12};
  table.optimizer_bytes_per_second = 1e3;
  const KernelSeconds seconds = step_program(config, units, plan::record_pass(config), table).computed();
  EXPECT_NEAR(seconds[KernelClass::kOptimizer], bytes / 1e3, 1e-9 * bytes);
}

TEST(ComputeTable, TakesMeasuredRatesAndOthersBetweenThem) {
  ComputeTable table;
  table.products = {{.shape = {.m = 64, .n = 64, .k = 64}, .flops_per_second = 1e9},
                    {.shape = {.m = 1024, .n = 1024, .k = 1024}, .flops_per_second = 4e9}};
  const auto rate = [&table](int64_t size) {
    const kernels::MetaProduct product{.m = size, .n = size, .k = size};
    return product.flops() / table.product_seconds(product);
  };
  EXPECT_DOUBLE_EQ(rate(64), 1e9);
  EXPECT_DOUBLE_EQ(rate(1024), 4e9);
  EXPECT_NEAR(rate(256), 2e9, 1e-3 * 2e9) << "half way";
  const kernels::MetaProduct in_float8{.m = 64, .n = 64, .k = 64, .kind = kernels::ProductKind::kFloat8};
  EXPECT_DOUBLE_EQ(table.product_seconds(in_float8), in_float8.flops() / 2e9);
}

TEST(ComputeTable, OfADataSheetIsBoundByArithmeticOrMemory) {
  const ComputeTable table{.element_bytes = 2, .flops_per_second = 1e12, .memory_bytes_per_second = 1e9};
  const kernels::MetaProduct large{.m = 8192, .n = 8192, .k = 8192}, thin{.m = 1, .n = 8192, .k = 8192};
  EXPECT_DOUBLE_EQ(table.product_seconds(large), large.flops() / 1e12);
  EXPECT_NEAR(table.product_seconds(thin), 2.0 * 8192 * 8192 / 1e9, 1e-3);
}

}  // namespace
}  // namespace fsdp::simulate
