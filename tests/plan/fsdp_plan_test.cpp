// The program, which plans any world in a small process of its own.

#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <vector>

#include "config/load.h"
#include "plan/text.h"
#include "support/program_path.h"
#include "support/run_program.h"

namespace fsdp::plan {
namespace {

std::string config_path(const std::string& name) {
  return std::string(FSDP_SOURCE_DIR) + "/configs/plan/" + name + ".toml";
}

testing::ProgramResult run_plan(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), testing::program_path("fsdp-plan"));
  return testing::run(arguments);
}

TEST(FsdpPlan, OfATrillionParametersTakesUnderASecondAndUnder100MB) {
  const testing::ProgramResult result = run_plan({config_path("1t")});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_LT(result.peak_resident_bytes, 100'000'000);
  EXPECT_LT(result.seconds, 1);
  EXPECT_EQ(result.out, plan_text(make_plan(config::load_config(config_path("1t")), {})));
}

// As fsdp-plan does, this test links the room alone.
TEST(FsdpPlan, LoadsNoLibtorch) {
  std::ifstream maps("/proc/self/maps");
  ASSERT_TRUE(maps.good());
  for (std::string line; std::getline(maps, line);) {
    EXPECT_EQ(line.find("libtorch_cpu.so"), std::string::npos) << line;
    EXPECT_EQ(line.find("libc10.so"), std::string::npos) << line;
  }
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

TEST(FsdpPlan, EndsWithTheExitCodeOfAUsageErrorAndSaysWhatWasExpected) {
  auto expect = [](const std::vector<std::string>& arguments, const std::string& part) {
    const testing::ProgramResult result = run_plan(arguments);
    EXPECT_EQ(result.exit_code, 2) << part;
    EXPECT_NE(result.err.find(part), std::string::npos) << result.err;
    EXPECT_EQ(result.out, "");
  };
  expect({},
         "command line: expected fsdp-plan [OPTIONS] config [overrides...]; found no config (TOML file); ");
  expect({"/nonexistent/none.toml"}, "none.toml");
  expect({config_path("13b"), "training.stps=3"}, "training.steps");
  expect({config_path("13b"), "--flops-tflops", "0"}, "--flops-tflops: expected a number above 0");
  expect({config_path("13b"), "fsdp.wrap_stages=[\"atention\"]"}, "did you mean \"attention\"?");
}

}  // namespace
}  // namespace fsdp::plan
