// The program plans any world in one small process.

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/util/error.h"
#include "setup/config/load.h"
#include "support/program_path.h"
#include "support/run_program.h"
#include "support/source_folder.h"
#include "tools/plan/text.h"

namespace fsdp::plan {
namespace {

std::string config_path(const std::string& name) {
  return testing::source_folder() + "/configs/plan/" + name + ".toml";
}

testing::ProgramResult run_plan(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), testing::program_path("fsdp-plan"));
  return testing::run(arguments);
}

TEST(FsdpPlan, OfATrillionParametersTakesUnder100MBBesideTheLibraries) {
  // libtorch alone is over 100 MB resident in every program that links it, and far more with CUDA.
  const testing::ProgramResult libraries = run_plan({"--version"});
  const testing::ProgramResult result = run_plan({config_path("1t")});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_LT(result.peak_resident_bytes - libraries.peak_resident_bytes, 100'000'000);
  const config::Config config = config::load_config(config_path("1t"));
  EXPECT_EQ(result.out, plan_text(make_plan(config, {})));
}

TEST(FsdpPlan, TakesMachinesOverridesAndJson) {
  const config::Config config = config::load_config(config_path("13b"), {"data.micro_batch_size=3"});
  const PlanOptions machines = {.world_size = 16,
                                .memory_gib = 20,
                                .bandwidth_gbps = 200,
                                .dcn_bandwidth_gbps = 50,
                                .flops_tflops = 300};
  const testing::ProgramResult result =
      run_plan({config_path("13b"), "data.micro_batch_size=3", "mesh.data=-1", "--world-size", "16",
                "--gpu-memory-gib", "20", "--bandwidth-gbps", "200", "--dcn-bandwidth-gbps", "50",
                "--flops-tflops", "300", "--json"});
  config::Config expected = config;
  expected.mesh.data = -1;
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out, plan_json(make_plan(expected, machines)));
}

TEST(FsdpPlan, EstimatesTheMemoryOfNcclsCommunicators) {
  const auto planned = [](const std::vector<std::string>& overrides, int64_t ranks) {
    const config::Config config = config::load_config(config_path("13b"), overrides);
    const Plan plan = make_plan(config, {.world_size = ranks});
    return nccl_memory(plan.config, plan.mesh, plan.units);
  };
  constexpr int64_t kMiB = 1 << 20;
  EXPECT_EQ(planned({"mesh.data=-1"}, 2).bytes, 544 * kMiB);
  EXPECT_EQ(planned({"mesh.data=-1"}, 8).bytes, 688 * kMiB);
  EXPECT_EQ(planned({"mesh.data=-1", "fsdp.reduce_scatter_group=true"}, 8).communicators, 2);
  // The world, a slice and the ranks with the same shard.
  const std::vector<std::string> hybrid{"mesh.data=-1", "mesh.dcn=2", "fsdp.strategy=hybrid_shard"};
  EXPECT_EQ(planned(hybrid, 8).communicators, 3);
  EXPECT_EQ(planned(hybrid, 8).bytes, (2 * 688 + 544) * kMiB);
  EXPECT_EQ(planned({"mesh.data=-1", "mesh.context=2"}, 8).communicators, 2);
  EXPECT_EQ(planned({"mesh.data=-1", "training.device=cpu"}, 8).communicators, 0);
  EXPECT_EQ(planned({"mesh.data=-1", "comm.backend=gloo"}, 8).communicators, 0);
  EXPECT_EQ(planned({"mesh.data=-1"}, 1).communicators, 0);
}

TEST(FsdpPlan, NeedsNoConfigForAWellKnownModel) {
  const testing::ProgramResult result =
      run_plan({"--preset", "llama3-8b", "--gpus", "64", "--gpu", "h100", "--tokens", "15T",
                "data.sequence_length=4096", "data.micro_batch_size=2"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_TRUE(result.out.starts_with("memory     ")) << result.out;
  for (const char* part :
       {"it fits, with data.micro_batch_size up to ", " TFLOP/s a GPU, MFU 37.7%",
        "training   15,000,000,000,000 tokens take ", " days\n", "8,030,261,248 parameters",
        "524,288 tokens a step (64 ranks x 1 micro-batches x 2 sequences x 4096 tokens)",
        "machines   h100-sxm, 80 GiB, 8 a node, 3600 Gbit/s inside it, 400 between nodes",
        "50% of the 989.5 that its data sheet gives"}) {
    EXPECT_NE(result.out.find(part), std::string::npos) << part << "\n" << result.out;
  }
}

TEST(FsdpPlan, SaysFirstWhoseRatesItAssumes) {
  const std::string assumed =
      "assumed    150 TFLOP/s, 400 Gbit/s and 80 GiB a rank are of no machine in particular";
  EXPECT_TRUE(run_plan({config_path("13b")}).out.starts_with(assumed));
  for (const std::vector<std::string>& named :
       {std::vector<std::string>{"--gpu", "h100"}, {"--flops-tflops", "3"}}) {
    std::vector<std::string> words = {config_path("13b")};
    words.insert(words.end(), named.begin(), named.end());
    EXPECT_EQ(run_plan(words).out.find("assumed"), std::string::npos) << named[0];
  }
}

TEST(FsdpPlan, SearchesLargeMicroBatchesWithoutRecordingThem) {
  // Attention within documents is recorded row by row, which took half a minute for thousands of rows.
  const config::Config config =
      config::load_config(testing::source_folder() + "/configs/quickstart.toml", {"data.documents=mask"});
  const auto begin = std::chrono::steady_clock::now();
  const Plan plan = make_plan(config, {});
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20)) << "a second, if not loaded";
  const auto peak_of = [&](int64_t rows) {
    config::Config with = config;
    with.data.micro_batch_size = rows;
    return device_peak(with, plan.units, record_pass(with));
  };
  EXPECT_LE(peak_of(plan.largest_micro_batch), plan.memory_limit());
  EXPECT_GT(peak_of(plan.largest_micro_batch + 1), plan.memory_limit());
}

TEST(FsdpPlan, CountsAStepWithAndWithoutRecomputation) {
  const auto plan_with = [](const std::string& mode) {
    const config::Config config = config::load_config(
        config_path("13b"),
        {"activation_checkpointing.mode=" + mode, "mesh.data=16", "training.gradient_accumulation_steps=2"});
    return make_plan(config, {.peak_tflops = 989.5});
  };
  const Plan once = plan_with("none"), again = plan_with("full");
  EXPECT_EQ(once.recomputed_flops(), 0);
  EXPECT_EQ(once.hardware_tflops(), once.model_tflops());
  EXPECT_NEAR(again.time.flops - again.recomputed_flops(), once.time.flops, 1e-9 * once.time.flops);
  EXPECT_GT(again.recomputed_flops(), 0.3 * once.time.flops);
  const nlohmann::json json = nlohmann::json::parse(plan_json(again)).at("time");
  EXPECT_NEAR(json.at("hfu").get<double>() / json.at("mfu").get<double>(),
              again.flops.hardware / again.flops.model, 1e-9);
  EXPECT_NE(plan_text(again).find("with recomputation "), std::string::npos) << plan_text(again);
  EXPECT_NE(plan_text(again).find(" HFU "), std::string::npos);
  EXPECT_NE(plan_text(again).find(" without recomputation"), std::string::npos);
  EXPECT_EQ(plan_text(once).find("recomputation"), std::string::npos) << plan_text(once);
}

TEST(FsdpPlan, FoldsUnitsThatAlternate) {
  const testing::ProgramResult result = run_plan({config_path("llama3_8b")});
  const auto lines = std::count(result.out.begin(), result.out.end(), '\n');
  EXPECT_LT(lines, 40) << result.out;
  for (const char* part :
       {"  model.layers.0 ... model.layers.31 ", "  model.layers.0.mlp ... model.layers.31.mlp "}) {
    EXPECT_NE(result.out.find(part), std::string::npos) << part << result.out;
  }
  EXPECT_EQ(result.out.find("model.layers.1.mlp"), std::string::npos);
}

// The files of configs/ have no warnings: config_files_test.cpp.
TEST(FsdpPlan, WarnsOfBlocksInTheRootAndAdvisesAgainstThem) {
  const testing::ProgramResult result =
      run_plan({config_path("llama3_8b"), "fsdp.min_num_params=100_000_000", "--gpu-memory-gib", "24"});
  EXPECT_NE(result.out.find("warning    the root unit holds "), std::string::npos) << result.out;
  EXPECT_NE(result.out.find("\n  fsdp.min_num_params = 41951232 "), std::string::npos) << result.out;
}

TEST(FsdpPlan, EndsWithTheExitCodeOfAUsageErrorAndSaysWhatWasExpected) {
  auto expect = [](const std::vector<std::string>& arguments, const std::string& part) {
    const testing::ProgramResult result = run_plan(arguments);
    EXPECT_EQ(result.exit_code, 2) << part;
    EXPECT_NE(result.err.find(part), std::string::npos) << result.err;
    EXPECT_EQ(result.out, "");
  };
  expect({}, "command line: expected a config (a TOML file) or --preset; found neither");
  expect({"--preset", "llama3-8B"}, "found llama3-8B; did you mean llama3-8b?");
  expect({"--preset", "llama3-8b", "c.toml"},
         "expected a config or --preset; found c.toml and --preset llama3-8b");
  expect({config_path("13b"), "--gpu", "h10"}, "--gpu must be a GPU whose data sheet is known, but is h10");
  expect({config_path("13b"), "--tokens", "15X"}, "--tokens must be a number of tokens");
  expect({"/nonexistent/none.toml"}, "none.toml");
  expect({config_path("13b"), "training.stps=3"}, "training.steps");
  expect({config_path("13b"), "--flops-tflops", "0"}, "--flops-tflops must be above 0");
  expect({config_path("13b"), "fsdp.wrap_stages=[\"atention\"]"}, "did you mean \"attention\"?");
}

TEST(FsdpPlan, TakesMicroStepsFromTheGlobalBatch) {
  const auto planned = [](int64_t ranks) {
    return make_plan(
        config::load_config(config_path("llama3_8b"), {"training.global_batch_size=64", "mesh.data=-1"}),
        {.world_size = ranks});
  };
  EXPECT_EQ(planned(8).config.training.gradient_accumulation_steps, 8);
  EXPECT_EQ(planned(32).config.training.gradient_accumulation_steps, 2);
  EXPECT_EQ(planned(8).tokens_per_step(), planned(32).tokens_per_step());
  EXPECT_THROW(planned(24), util::Error);
}

}  // namespace
}  // namespace fsdp::plan
