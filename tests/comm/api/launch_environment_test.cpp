#include "comm/api/launch_environment.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "base/util/error.h"

namespace fsdp::comm {
namespace {

LaunchEnvironment read_with(const std::vector<std::pair<const char*, const char*>>& variables) {
  for (const char* name : {"RANK",
                           "WORLD_SIZE",
                           "LOCAL_RANK",
                           "LOCAL_WORLD_SIZE",
                           "MASTER_ADDR",
                           "MASTER_PORT",
                           "TORCHELASTIC_USE_AGENT_STORE",
                           "TORCHELASTIC_RESTART_COUNT",
                           "SLURM_PROCID",
                           "SLURM_NTASKS",
                           "SLURM_STEP_NUM_TASKS",
                           "SLURM_LOCALID",
                           "SLURM_NODEID",
                           "SLURM_STEP_TASKS_PER_NODE",
                           "SLURM_STEP_NODELIST",
                           "SLURM_JOB_ID",
                           "SLURM_STEP_ID",
                           "OMPI_COMM_WORLD_RANK",
                           "OMPI_COMM_WORLD_SIZE",
                           "OMPI_COMM_WORLD_LOCAL_RANK",
                           "OMPI_COMM_WORLD_LOCAL_SIZE"}) {
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
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
  }
}

TEST(LaunchEnvironment, IsAWorldOfOneWithoutVariables) {
  LaunchEnvironment environment = read_with({});
  EXPECT_EQ(environment.world_size, 1);
  EXPECT_EQ(environment.rank, 0);
  EXPECT_FALSE(environment.has_launcher);
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
  EXPECT_TRUE(environment.has_launcher);
}

TEST(LaunchEnvironment, KnowsAStoreThatTorchrunKeeps) {
  LaunchEnvironment environment = read_with({{"RANK", "0"},
                                             {"WORLD_SIZE", "1"},
                                             {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                                             {"TORCHELASTIC_RESTART_COUNT", "2"}});
  EXPECT_TRUE(environment.launcher_keeps_store);
  EXPECT_EQ(environment.restarts, 2);
  environment = read_with({{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"TORCHELASTIC_USE_AGENT_STORE", "False"}});
  EXPECT_FALSE(environment.launcher_keeps_store);
}

TEST(LaunchEnvironment, ReadsWhatSrunSets) {
  const std::vector<std::pair<const char*, const char*>> variables = {
      {"SLURM_PROCID", "6"},     {"SLURM_STEP_NUM_TASKS", "7"},
      {"SLURM_LOCALID", "0"},    {"SLURM_NODEID", "3"},
      {"SLURM_JOB_ID", "12007"}, {"SLURM_STEP_TASKS_PER_NODE", "2(x3),1"},
      {"SLURM_STEP_ID", "0"},    {"SLURM_STEP_NODELIST", "gpu[007-009,12],login"}};
  LaunchEnvironment environment = read_with(variables);
  EXPECT_EQ(environment.rank, 6);
  EXPECT_EQ(environment.world_size, 7);
  EXPECT_EQ(environment.local_rank, 0);
  EXPECT_EQ(environment.local_world_size, 1);
  EXPECT_EQ(environment.master_addr, "gpu007");
  EXPECT_EQ(environment.master_port, 20007);
  EXPECT_TRUE(environment.has_launcher);
  auto chosen = variables;
  chosen.insert(chosen.end(), {{"MASTER_ADDR", "10.0.0.1"}, {"MASTER_PORT", "1234"}});
  EXPECT_EQ(read_with(chosen).master_addr, "10.0.0.1");
  EXPECT_EQ(read_with(chosen).master_port, 1234);
}

TEST(LaunchEnvironment, TakesABatchScriptForAWorldOfOne) {
  EXPECT_EQ(read_with({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}, {"SLURM_LOCALID", "0"}}).world_size, 1);
}

TEST(LaunchEnvironment, TakesAnInteractiveShellOfSlurmForAWorldOfOne) {
  for (const char* step : {"4294967290", "4294967291"}) {
    const LaunchEnvironment environment = read_with({{"SLURM_PROCID", "0"},
                                                     {"SLURM_STEP_NUM_TASKS", "2"},
                                                     {"SLURM_LOCALID", "0"},
                                                     {"SLURM_NODEID", "0"},
                                                     {"SLURM_JOB_ID", "7"},
                                                     {"SLURM_STEP_ID", step}});
    EXPECT_EQ(environment.world_size, 1);
    EXPECT_FALSE(environment.has_launcher) << "a shell kills nobody that does not end";
  }
  // Numbers of jobs have 32 bits too.
  EXPECT_EQ(read_with({{"SLURM_PROCID", "0"},
                       {"SLURM_STEP_NUM_TASKS", "2"},
                       {"SLURM_LOCALID", "0"},
                       {"SLURM_JOB_ID", "4000000000"},
                       {"SLURM_STEP_ID", "0"}})
                .master_port,
            20000 + 4000000000 % 12000);
  expect_refused({{"SLURM_STEP_NUM_TASKS", "1"}, {"SLURM_STEP_ID", "4294967296"}}, "SLURM_STEP_ID");
}

TEST(LaunchEnvironment, ReadsWhatMpirunSets) {
  LaunchEnvironment environment = read_with({{"OMPI_COMM_WORLD_RANK", "1"},
                                             {"OMPI_COMM_WORLD_SIZE", "2"},
                                             {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                                             {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}});
  EXPECT_EQ(environment.rank, 1);
  EXPECT_EQ(environment.local_rank, 1);
  EXPECT_TRUE(environment.single_node());
  EXPECT_TRUE(environment.has_launcher);
  const std::vector<std::pair<const char*, const char*>> apart{{"OMPI_COMM_WORLD_RANK", "1"},
                                                               {"OMPI_COMM_WORLD_SIZE", "2"},
                                                               {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
                                                               {"OMPI_COMM_WORLD_LOCAL_SIZE", "1"}};
  EXPECT_EQ(read_with(apart).master_addr, "") << "MPI knows where rank 0 is";
}

TEST(LaunchEnvironment, NamesTheVariableThatIsWrong) {
  expect_refused({{"SLURM_STEP_NUM_TASKS", "2"}}, "SLURM_PROCID");
  expect_refused({{"SLURM_PROCID", "0"},
                  {"SLURM_STEP_NUM_TASKS", "2"},
                  {"SLURM_LOCALID", "0"},
                  {"SLURM_NODEID", "1"},
                  {"SLURM_STEP_TASKS_PER_NODE", "2"}},
                 "SLURM_STEP_TASKS_PER_NODE");
  expect_refused({{"OMPI_COMM_WORLD_SIZE", "2"}}, "OMPI_COMM_WORLD_RANK");
  expect_refused({{"RANK", "0"}}, "WORLD_SIZE");
  expect_refused({{"RANK", "two"}, {"WORLD_SIZE", "2"}}, "RANK");
  expect_refused({{"RANK", "2"}, {"WORLD_SIZE", "2"}}, "RANK");
  expect_refused({{"RANK", "0"}, {"WORLD_SIZE", "0"}}, "WORLD_SIZE");
  expect_refused({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_PORT", "99999"}}, "MASTER_PORT");
  expect_refused({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", "3"}}, "LOCAL_RANK");
}

}  // namespace
}  // namespace fsdp::comm
