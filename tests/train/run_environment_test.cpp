#include "train/run_environment.h"

#include <gtest/gtest.h>

#include "comm/communicator.h"

namespace fsdp::train {
namespace {

TEST(RunEnvironment, NamesVersionsProcessorAndRanks) {
  const comm::SingleCommunicator communicator;
  const nlohmann::ordered_json environment =
      run_environment(communicator, {.flops_per_second = 3e12, .source = "data sheet"});
  EXPECT_EQ(environment["ranks"], 1);
  EXPECT_TRUE(environment["libtorch"].get<std::string>().starts_with("2."));
  for (const char* key : {"fsdp", "started", "communication", "host", "cpu", "cpu_instructions", "memory"}) {
    EXPECT_FALSE(environment[key].get<std::string>().empty()) << key;
  }
  EXPECT_EQ(environment["peak_tflops_a_rank"], 3);
  EXPECT_EQ(environment["peak_tflops_source"], "data sheet");
  EXPECT_GE(environment["threads_a_rank"].get<int>(), 1);
}

}  // namespace
}  // namespace fsdp::train
