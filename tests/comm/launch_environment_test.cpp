#include "comm/launch_environment.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "util/error.h"

namespace fsdp::comm {
namespace {

LaunchEnvironment read_with(const std::vector<std::pair<const char*, const char*>>& variables) {
  for (const char* name :
       {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}) {
    unsetenv(name);
  }
  for (const auto& [name, value] : variables) setenv(name, value, 1);
  return read_launch_environment();
}

void expect_refused(const std::vector<std::pair<const char*, const char*>>& variables,
                    const std::string& part) {
  try {
    read_with(variables);
    FAIL() << "expected an error about " << part;
  } catch (const util::Error& error) {
    EXPECT_EQ(error.kind(), util::ErrorKind::kUsage);
    EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
  }
}

TEST(LaunchEnvironment, IsAWorldOfOneWithoutVariables) {
  LaunchEnvironment environment = read_with({});
  EXPECT_EQ(environment.world_size, 1);
  EXPECT_EQ(environment.rank, 0);
}

TEST(LaunchEnvironment, ReadsWhatTorchrunSets) {
  LaunchEnvironment environment = read_with({{"RANK", "5"},
                                             {"WORLD_SIZE", "8"},
                                             {"LOCAL_RANK", "1"},
                                             {"LOCAL_WORLD_SIZE", "4"},
                                             {"MASTER_ADDR", "10.0.0.1"},
                                             {"MASTER_PORT", "1234"}});
  EXPECT_EQ(environment.rank, 5);
  EXPECT_EQ(environment.local_rank, 1);
  EXPECT_EQ(environment.master_addr, "10.0.0.1");
  EXPECT_EQ(environment.master_port, 1234);
  EXPECT_FALSE(environment.single_node());
}

TEST(LaunchEnvironment, NamesTheVariableThatIsWrong) {
  expect_refused({{"RANK", "0"}}, "WORLD_SIZE");
  expect_refused({{"RANK", "two"}, {"WORLD_SIZE", "2"}}, "RANK");
  expect_refused({{"RANK", "2"}, {"WORLD_SIZE", "2"}}, "RANK");
  expect_refused({{"RANK", "0"}, {"WORLD_SIZE", "0"}}, "WORLD_SIZE");
  expect_refused({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_PORT", "99999"}}, "MASTER_PORT");
  expect_refused({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", "3"}}, "LOCAL_RANK");
}

}  // namespace
}  // namespace fsdp::comm
