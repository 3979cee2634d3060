#include "tools/plan/machines.h"

#include <gtest/gtest.h>

#include "base/util/error.h"

namespace fsdp::plan {
namespace {

config::Config in_bfloat16() {
  config::Config config;
  config.mixed_precision.param_dtype = "bfloat16";
  return config;
}

std::string refusal(const config::Config& config, const GivenMachines& given) {
  try {
    machines_of(config, given);
  } catch (const util::Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    return error.what();
  }
  return "";
}

TEST(Machines, AreThoseOfTheDataSheetUnlessGiven) {
  GivenMachines given;
  given.gpu = "h100";
  PlanOptions machines = machines_of(in_bfloat16(), given);
  EXPECT_EQ(machines.gpu, "h100-sxm");
  EXPECT_DOUBLE_EQ(machines.peak_tflops, 989.5);
  EXPECT_DOUBLE_EQ(machines.flops_tflops, 0.5 * 989.5);
  EXPECT_DOUBLE_EQ(machines.memory_gib, 80);
  EXPECT_DOUBLE_EQ(machines.node_bandwidth_gbps, 3600);
  EXPECT_EQ(machines.gpus_per_node, 8);
  given.efficiency = 0.4;
  given.memory_gib = 40;
  given.gpus_per_node = 4;
  given.node_bandwidth_gbps = 100;
  machines = machines_of(in_bfloat16(), given);
  EXPECT_DOUBLE_EQ(machines.product_tflops, 0.4 * 989.5) << "the rate of a simulation";
  EXPECT_DOUBLE_EQ(machines.flops_tflops, 0.4 * kProductsOfStep * 989.5) << "that of a plan";
  EXPECT_DOUBLE_EQ(machines.memory_gib, 40);
  EXPECT_DOUBLE_EQ(machines.node_bandwidth_gbps, 100);
  EXPECT_EQ(machines.gpus_per_node, 4);
  given.flops_tflops = 300;
  EXPECT_DOUBLE_EQ(machines_of(in_bfloat16(), given).flops_tflops, 300);
  EXPECT_DOUBLE_EQ(machines_of({}, given).peak_tflops, 67) << "in float32";
}

TEST(Machines, WithoutAGpuAreTheDefaults) {
  const PlanOptions machines = machines_of({}, {}), defaults;
  EXPECT_EQ(machines.memory_gib, defaults.memory_gib);
  EXPECT_EQ(machines.flops_tflops, defaults.flops_tflops);
  EXPECT_EQ(machines.gpus_per_node, 0);
  EXPECT_EQ(machines.peak_tflops, 0);
  EXPECT_TRUE(machines.rate_is_assumed());
  GivenMachines given;
  given.flops_tflops = 3;
  EXPECT_FALSE(machines_of({}, given).rate_is_assumed());
}

TEST(Machines, ThatCannotBeAreRefused) {
  GivenMachines given;
  given.gpu = "h10";
  EXPECT_NE(refusal({}, given).find("`gpu` must be a GPU whose data sheet is known, but is h10"),
            std::string::npos);
  given.gpu = "v100";
  EXPECT_NE(refusal(in_bfloat16(), given).find("products in bfloat16"), std::string::npos);
  given = {};
  given.efficiency = 1.5;
  EXPECT_NE(refusal({}, given).find("`efficiency`"), std::string::npos);
  given = {};
  given.node_bandwidth_gbps = 100;
  EXPECT_NE(refusal({}, given).find("`gpus_per_node`"), std::string::npos);
}

TEST(Machines, ReadTokensWithTheirUnits) {
  EXPECT_DOUBLE_EQ(parse_tokens("15T"), 15e12);
  EXPECT_DOUBLE_EQ(parse_tokens("300b"), 300e9);
  EXPECT_DOUBLE_EQ(parse_tokens("2.5M"), 2.5e6);
  EXPECT_DOUBLE_EQ(parse_tokens("1e12"), 1e12);
  for (const char* wrong : {"", "T", "15X", "-3", "0", "15 T", "inf", "1KB"}) {
    EXPECT_THROW(parse_tokens(wrong), util::Error) << wrong;
  }
}

}  // namespace
}  // namespace fsdp::plan
