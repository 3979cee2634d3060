#include "tools/launch/worker_environment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace fsdp::launch {
namespace {

using ::testing::Contains;
using ::testing::Not;
using ::testing::StartsWith;

NodePlacement two_nodes_of_three() {
  return {.node_rank = 1,
          .nodes = 2,
          .workers_per_node = 3,
          .first_rank = 3,
          .world_size = 6,
          .master_addr = "node0",
          .master_port = 29500,
          .run_id = "abc",
          .role = "trainer",
          .restarts = 1,
          .max_restarts = 2,
          .terminal_columns = 0};
}

TEST(WorkerEnvironment, SaysWhatTorchrunSays) {
  const auto entries = worker_environment(
      two_nodes_of_three(), {.local_rank = 2, .error_file = "/logs/error.json", .launch_marks = "1:2"},
      {"HOME=/home/user", "RANK=77", "FSDP_LAUNCH_TOKEN=secret"});
  for (const char* entry :
       {"RANK=5", "LOCAL_RANK=2", "WORLD_SIZE=6", "LOCAL_WORLD_SIZE=3", "GROUP_RANK=1", "GROUP_WORLD_SIZE=2",
        "ROLE_RANK=5", "ROLE_WORLD_SIZE=6", "ROLE_NAME=trainer", "MASTER_ADDR=node0", "MASTER_PORT=29500",
        "TORCHELASTIC_RUN_ID=abc", "TORCHELASTIC_RESTART_COUNT=1", "TORCHELASTIC_MAX_RESTARTS=2",
        "TORCHELASTIC_ERROR_FILE=/logs/error.json", "TORCHELASTIC_USE_AGENT_STORE=False",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING=1", "FSDP_LAUNCH_ID=1:2", "HOME=/home/user"}) {
    EXPECT_THAT(entries, Contains(entry));
  }
  EXPECT_THAT(entries, Not(Contains("RANK=77")));
  EXPECT_THAT(entries, Not(Contains(StartsWith("FSDP_LAUNCH_TOKEN"))));
}

TEST(WorkerEnvironment, GivesAShareOfTheCoresUnlessTheUserChose) {
  const NodePlacement placement = two_nodes_of_three();
  EXPECT_THAT(worker_environment(placement, {.cores = 5}, {}), Contains("OMP_NUM_THREADS=5"));
  EXPECT_THAT(worker_environment(placement, {.cores = 0}, {}), Contains("OMP_NUM_THREADS=1"));
  EXPECT_THAT(worker_environment(placement, {.cores = 5}, {"OMP_NUM_THREADS=7"}),
              Contains("OMP_NUM_THREADS=7"));
}

TEST(WorkerEnvironment, TellsTheWidthOfATerminalOnly) {
  NodePlacement placement = two_nodes_of_three();
  EXPECT_THAT(worker_environment(placement, {}, {"FSDP_TERMINAL_COLUMNS=50"}),
              Not(Contains(StartsWith("FSDP_TERMINAL_COLUMNS="))));
  placement.terminal_columns = 80;
  EXPECT_THAT(worker_environment(placement, {}, {}), Contains("FSDP_TERMINAL_COLUMNS=72"));  // "[rank3] "
  placement.terminal_columns = 3;
  EXPECT_THAT(worker_environment(placement, {}, {}), Contains("FSDP_TERMINAL_COLUMNS=1"));
}

TEST(WorkerEnvironment, PicksAUsablePort) {
  const int port = free_port();
  EXPECT_GT(port, 1023);
  EXPECT_LE(port, 65535);
}

}  // namespace
}  // namespace fsdp::launch
