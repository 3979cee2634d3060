#include "launch/worker_environment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "launch/options.h"

namespace fsdp::launch {
namespace {

using ::testing::Contains;
using ::testing::Not;
using ::testing::StartsWith;

NodePlacement two_nodes_of_three() {
  return {.node_rank = 1,
          .nodes = 2,
          .workers_per_node = 3,
          .master_addr = "node0",
          .master_port = 29500,
          .run_id = "abc",
          .terminal_columns = 0};
}

TEST(WorkerEnvironment, SaysWhatTorchrunSays) {
  const auto entries = worker_environment(two_nodes_of_three(), 2, {"HOME=/home/user", "RANK=77"});
  for (const char* entry :
       {"RANK=5", "LOCAL_RANK=2", "WORLD_SIZE=6", "LOCAL_WORLD_SIZE=3", "GROUP_RANK=1", "GROUP_WORLD_SIZE=2",
        "ROLE_RANK=5", "ROLE_WORLD_SIZE=6", "ROLE_NAME=default", "MASTER_ADDR=node0", "MASTER_PORT=29500",
        "TORCHELASTIC_RUN_ID=abc", "TORCHELASTIC_RESTART_COUNT=0", "TORCHELASTIC_MAX_RESTARTS=0",
        "HOME=/home/user"}) {
    EXPECT_THAT(entries, Contains(entry));
  }
  EXPECT_THAT(entries, Not(Contains("RANK=77")));
}

TEST(WorkerEnvironment, DividesTheCoresUnlessTheUserChose) {
  NodePlacement placement = two_nodes_of_three();
  placement.workers_per_node = 1;
  EXPECT_THAT(worker_environment(placement, 0, {}),
              Contains("OMP_NUM_THREADS=" + std::to_string(available_cores())));
  placement.workers_per_node = 100000;
  EXPECT_THAT(worker_environment(placement, 0, {}), Contains("OMP_NUM_THREADS=1"));
  EXPECT_THAT(worker_environment(placement, 0, {"OMP_NUM_THREADS=7"}), Contains("OMP_NUM_THREADS=7"));
}

TEST(WorkerEnvironment, TellsTheWidthOfATerminalOnly) {
  NodePlacement placement = two_nodes_of_three();
  EXPECT_THAT(worker_environment(placement, 0, {"FSDP_TERMINAL_COLUMNS=50"}),
              Not(Contains(StartsWith("FSDP_TERMINAL_COLUMNS="))));
  placement.terminal_columns = 80;
  EXPECT_THAT(worker_environment(placement, 0, {}), Contains("FSDP_TERMINAL_COLUMNS=72"));  // "[rank3] "
  placement.terminal_columns = 3;
  EXPECT_THAT(worker_environment(placement, 0, {}), Contains("FSDP_TERMINAL_COLUMNS=1"));
}

TEST(WorkerEnvironment, PicksAUsablePortAndANewRunId) {
  const int port = free_port();
  EXPECT_GT(port, 1023);
  EXPECT_LE(port, 65535);
  EXPECT_EQ(new_run_id().size(), 16u);
  EXPECT_NE(new_run_id(), new_run_id());
}

}  // namespace
}  // namespace fsdp::launch
