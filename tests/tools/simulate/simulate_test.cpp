#include "tools/simulate/simulate.h"

#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/util/error.h"
#include "setup/config/load.h"
#include "support/program_path.h"
#include "support/run_program.h"
#include "support/source_folder.h"
#include "support/temporary_folder.h"
#include "tools/plan/machines.h"

namespace fsdp::simulate {
namespace {

config::Config llama_8b(const std::vector<std::string>& overrides = {}) {
  std::vector<std::string> all = {"mesh.data=-1"};
  all.insert(all.end(), overrides.begin(), overrides.end());
  return config::load_config(testing::source_folder() + "/configs/plan/llama3_8b.toml", all);
}

plan::Plan planned(const config::Config& config, int64_t gpus) {
  plan::GivenMachines given;
  given.world_size = gpus;
  given.gpu = "h100";
  return plan::make_plan(config, plan::machines_of(config, given));
}

Calibration two_cores() {
  Calibration calibration{.cores_of_host = 2};
  ComputeTable& compute = calibration.compute;
  compute = {.machine = "a CPU", .source = "measured", .dtype = "float32", .threads = 1, .element_bytes = 4};
  compute.products = {{.shape = {.m = 64, .n = 64, .k = 64}, .flops_per_second = 1e11}};
  compute.flops_per_second = 1e11;
  compute.memory_bytes_per_second = compute.elementwise_bytes_per_second = compute.loss_bytes_per_second =
      compute.optimizer_bytes_per_second = compute.norm_bytes_per_second = 1e10;
  compute.host_seconds = 1e-6;
  NetworkTable& shm = calibration.networks["shm"];
  shm = {.name = "this machine", .source = "measured"};
  shm.inside.latency_seconds = 1e-5;
  shm.copy_bytes_per_second = shm.sum_bytes_per_second = 5e9;
  return calibration;
}

std::string refusal(const std::function<void()>& run) {
  try {
    run();
  } catch (const util::Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    return error.what();
  }
  return "";
}

TEST(Simulate, TakesAsManyRanksAsThereAre) {
  const Simulation few = simulate(planned(llama_8b(), 64), {.network = "ib-400"});
  const Simulation many = simulate(planned(llama_8b(), 10240), {.network = "ib-400"});
  EXPECT_GT(few.mfu, 0.2);
  EXPECT_LT(few.mfu, plan::kEfficiency);
  EXPECT_LT(many.mfu, few.mfu) << "the steps of rings over 1280 hosts";
  EXPECT_EQ(many.cluster.hosts(), 1280);
  EXPECT_EQ(many.cluster.backend, comm::Backend::kNccl);
}

TEST(Simulate, IsSlowerOverASlowerNetwork) {
  const plan::Plan plan = planned(llama_8b(), 64);
  const Simulation fast = simulate(plan, {.network = "ib-400"}), slow = simulate(plan, {.network = "tcp-10"});
  EXPECT_GT(slow.step_seconds, 2 * fast.step_seconds);
  EXPECT_EQ(slow.bound(), "links between hosts");
  EXPECT_EQ(slow.kernels.of, fast.kernels.of);
}

TEST(Simulate, LinksSlicesNoFasterThanHosts) {
  const plan::Plan plan = planned(llama_8b({"fsdp.strategy=hybrid_shard", "mesh.dcn=8"}), 64);
  const NetworkTable slow = simulate(plan, {.network = "tcp-10"}).cluster.network;
  EXPECT_EQ(slow.slices.bytes_per_second, slow.between.bytes_per_second);
  const NetworkTable fast = simulate(plan, {.network = "ib-400"}).cluster.network;
  EXPECT_LT(fast.slices.bytes_per_second, fast.between.bytes_per_second) << "as --dcn-bandwidth-gbps says";
}

TEST(Simulate, CountsTheBytesBetweenHosts) {
  const plan::Plan plan = planned(llama_8b(), 64);
  const Simulation simulation = simulate(plan, {.network = "ib-400"});
  // NCCL brings the parts of 56 ranks of other hosts to each host once.
  const shard::Traffic& traffic = plan.step.traffic;
  const double expected = 56.0 * static_cast<double>(traffic.all_gather_bytes + traffic.reduce_scatter_bytes);
  EXPECT_NEAR(simulation.times.bytes_from_other_hosts, expected, 1e-6 * expected);
  EXPECT_EQ(simulate(planned(llama_8b(), 8), {}).times.bytes_from_other_hosts, 0);
}

TEST(Simulate, FindsTheScaleOfAMeasuredStep) {
  const plan::Plan plan = planned(llama_8b(), 64);
  const Simulation measured = simulate(plan, {.network = "ib-400", .compute_scale = 1.3});
  const Simulation found =
      simulate(plan, {.network = "ib-400", .measured_tokens_per_second = measured.tokens_per_second});
  EXPECT_NEAR(found.compute.scale, 1.3, 1e-3);
  EXPECT_NEAR(found.tokens_per_second, measured.tokens_per_second, 1e-4 * measured.tokens_per_second);
}

TEST(Simulate, TellsWhatFaultsAndSlowHostsCost) {
  SimulationOptions options{.network = "ib-400", .mtbf_hours = 5000};
  const plan::Plan plan = planned(llama_8b(), 1024);
  const Simulation undisturbed = simulate(plan, options);
  ASSERT_TRUE(undisturbed.faults);
  EXPECT_EQ(undisturbed.step_seconds, undisturbed.times.step);
  EXPECT_GT(undisturbed.faults->effective_share, 0.9);
  EXPECT_LT(undisturbed.faults->effective_share, 1);
  EXPECT_EQ(undisturbed.faults->interval, undisturbed.faults->best_interval);
  plan::Plan saving = plan;
  saving.config.checkpoint.interval_minutes = 7;
  EXPECT_EQ(simulate(saving, options).faults->interval, 420) << "as the config says";
  options.checkpoint_interval_minutes = 8;
  EXPECT_EQ(simulate(saving, options).faults->interval, 480);
  options.stragglers.slow_share = 0.05;
  const Simulation disturbed = simulate(plan, options);
  EXPECT_GT(disturbed.step_seconds, 1.1 * undisturbed.step_seconds)
      << "of 128 hosts one is slow nearly always";
}

TEST(Simulate, NeedsTheSpeedOfWhatTheRunComputesOn) {
  const plan::Plan on_cpus = planned(llama_8b({"training.device=cpu"}), 8);
  EXPECT_NE(refusal([&] { simulate(on_cpus, {}); }).find("computes on, CPUs (training.device)"),
            std::string::npos);
}

TEST(Simulate, OfAGroupOfOneRankIsCompute) {
  const Simulation one = simulate(planned(llama_8b(), 1), {});
  EXPECT_EQ(one.times.exposed, 0);
  EXPECT_NEAR(one.step_seconds, one.kernels.sum(), 1e-9 * one.step_seconds);
}

TEST(Calibration, IsReadAsItWasWritten) {
  const std::string text = calibration_json(two_cores());
  EXPECT_EQ(calibration_json(parse_calibration(text, "c.json")), text);
}

TEST(Calibration, ThatIsNoneIsRefused) {
  nlohmann::json file = nlohmann::json::parse(calibration_json(two_cores()));
  const auto refused = [](const nlohmann::json& json) {
    return refusal([&] { parse_calibration(json.dump(), "c.json"); });
  };
  EXPECT_NE(refusal([] { parse_calibration("{", "c.json"); }).find("c.json"), std::string::npos);
  nlohmann::json changed = file;
  changed["format"] = "fsdp calibration 9";
  EXPECT_NE(refused(changed).find("no \"format\": \"fsdp calibration 1\""), std::string::npos);
  changed = file;
  changed["compute"].erase("host_seconds");
  EXPECT_NE(refused(changed).find("'host_seconds' not found"), std::string::npos) << refused(changed);
  changed = file;
  changed["compute"]["elementwise_bytes_per_second"] = 0;
  EXPECT_NE(refused(changed).find("compute.elementwise_bytes_per_second of 0"), std::string::npos);
  changed = file;
  changed["compute"]["products"][0]["shape"]["kind"] = "odd";
  EXPECT_NE(refused(changed).find("compute.products"), std::string::npos);
}

TEST(Calibration, OfAnotherTypeOrBackendIsRefused) {
  testing::TemporaryFolder folder;
  std::ofstream(folder / "c.json") << calibration_json(two_cores());
  const SimulationOptions options{.calibration = (folder / "c.json").string()};
  const auto refused = [&](const std::vector<std::string>& overrides) {
    const config::Config config = config_for(llama_8b(overrides), options);
    EXPECT_EQ(config.training.device, config::DeviceChoice::kCpu);
    return refusal([&] { simulate(plan::make_plan(config, {.world_size = 2}), options); });
  };
  EXPECT_NE(refused({}).find("products, bfloat16, but"), std::string::npos);
  const std::vector<std::string> in_float32 = {"mixed_precision.param_dtype=float32"};
  EXPECT_EQ(refused(in_float32), "");
  EXPECT_NE(refused({in_float32.front(), "comm.backend=gloo"}).find("has none of gloo"), std::string::npos);
}

TEST(FsdpPlanSimulate, PrintsTextJsonAndTimeline) {
  testing::TemporaryFolder folder;
  const auto run = [&](std::vector<std::string> more) {
    std::vector<std::string> command = {testing::program_path("fsdp-plan"),
                                        "--preset",
                                        "llama3-8b",
                                        "--gpus",
                                        "64",
                                        "--gpu",
                                        "h100",
                                        "--network",
                                        "ib-400",
                                        "--simulate"};
    command.insert(command.end(), more.begin(), more.end());
    return testing::run(command, {.working_folder = folder.path()});
  };
  testing::ProgramResult result = run({"--mtbf-hours", "5000", "--timeline", "step.json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  for (const char* part : {"simulated  ", " tokens/s, ", "MFU ", "network    nccl",
                           "exposed, not hidden by compute", "best interval", "NCCL's ring"}) {
    EXPECT_NE(result.out.find(part), std::string::npos) << part << result.out;
  }
  std::ifstream timeline(folder / "step.json");
  const nlohmann::json events = nlohmann::json::parse(timeline);
  EXPECT_GT(events.size(), 100u);
  result = run({"--json"});
  const nlohmann::json json = nlohmann::json::parse(result.out);
  EXPECT_EQ(json.at("world_size"), 64);
  EXPECT_GT(json.at("kernel_seconds").at("products").get<double>(), 0);
  EXPECT_GT(json.at("kernel_seconds").at("optimizer").get<double>(), 0);
  EXPECT_TRUE(json.at("faults").is_null());
}

TEST(FsdpPlanSimulate, SaysWhatItNeeds) {
  const auto fails = [](const std::vector<std::string>& more, const std::string& part) {
    std::vector<std::string> command = {testing::program_path("fsdp-plan"), "--preset", "llama3-8b", "--gpus",
                                        "8"};
    command.insert(command.end(), more.begin(), more.end());
    const testing::ProgramResult result = testing::run(command);
    EXPECT_EQ(result.exit_code, 2) << part;
    EXPECT_NE(result.err.find(part), std::string::npos) << result.err;
  };
  fails({"--simulate"}, "neither --calibration nor --gpu is given");
  fails({"--simulate", "--gpu", "h100", "--network", "ib-40"}, "ib-40");
  fails({"--gpu", "h100", "--network", "ib-400"}, "--simulate");
  fails({"--simulate", "--gpu", "h100", "--timeline", "step.png"},
        "--timeline must be a file that ends in .svg");
}

}  // namespace
}  // namespace fsdp::simulate
