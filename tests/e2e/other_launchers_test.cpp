// fsdp-train started by something else than fsdp-launch.

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "e2e/programs.h"
#include "support/free_port.h"
#include "support/network_hosts.h"

namespace fsdp::e2e {
namespace {

using testing::ProgramResult;
using testing::RunningProgram;

class OtherLaunchers : public ::testing::Test {
 protected:
  void SetUp() override {
    testing::write_token_file(folder_ / "train.bin", 20 * 4 * 16 + 1, 17);
    std::ofstream(folder_ / "config.toml") << kOddModel;
  }

  std::vector<std::string> training(const std::string& run) const {
    return {program("fsdp-train"), (folder_ / "config.toml").string(),
            "run.output_dir=" + (folder_ / run).string(),
            "data.train=[\"" + (folder_ / "train.bin").string() + "\"]", "logging.interval_steps=20"};
  }

  /// The last loss of a run, as it stands in its metrics.
  std::string last_loss(const std::string& run) const {
    std::ifstream file(folder_ / run / "metrics.jsonl");
    std::string line, last;
    while (std::getline(file, line)) last = line;
    const size_t start = last.find("\"loss\":");
    return start == std::string::npos ? "" : last.substr(start, last.find(',', start) - start);
  }

  std::string loss_under_fsdp_launch() const {
    std::vector<std::string> command{program("fsdp-launch"), "--nproc-per-node", "2", "--"};
    for (const std::string& argument : training("launch")) command.push_back(argument);
    const ProgramResult result = testing::run(command, {.env = {{"OMP_NUM_THREADS", "1"}}});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return last_loss("launch");
  }

  /// Why no run over MPI can be started here; "" if one can.
  static std::string why_no_mpi() {
    const auto module =
        std::filesystem::path(program("fsdp-train")).parent_path().parent_path() / "lib/fsdp/fsdp_mpi.so";
    const bool starts = testing::run({"/bin/sh", "-c", "command -v mpirun"}).exit_code == 0;
    return starts && std::filesystem::exists(module) ? ""
                                                     : "no MPI here (Debian: libopenmpi-dev, openmpi-bin)";
  }

  std::vector<std::string> over_mpi(const std::string& run) const {
    std::vector<std::string> command{"mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2",
                                     "-x",     "OMP_NUM_THREADS=1"};
    for (const std::string& argument : training(run)) command.push_back(argument);
    command.push_back("comm.backend=mpi");
    return command;
  }

  /// What mpirun takes for ssh, to the second host: it is called with the host's address and a command.
  std::string agent_for(const testing::NetworkHosts& hosts) const {
    const std::string path = folder_ / "agent";
    std::ofstream script(path);
    script << "#!/bin/sh\nshift\nexec";
    for (const std::string& word : hosts.on(1, {"sh", "-c"})) script << " '" << word << "'";
    script << " \"$*\"\n";
    script.close();
    std::filesystem::permissions(path, std::filesystem::perms::owner_all);
    return path;
  }

  static void expect_bytes_of_the_formula(const ProgramResult& result, const std::string& ranks) {
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_NE(result.out.find(ranks), std::string::npos) << result.out;
    const std::string equal = "  equal\n";
    int rows = 0;
    for (size_t at = result.out.find(equal); at != std::string::npos; at = result.out.find(equal, at + 1)) {
      ++rows;
    }
    EXPECT_EQ(rows, 9) << "as over other backends (tests/e2e/explain_step_test.cpp): " << result.out;
  }

  testing::TemporaryFolder folder_;
};

TEST_F(OtherLaunchers, MpirunTrainsTheSameModel) {
  if (testing::run({"/bin/sh", "-c", "command -v mpirun"}).exit_code != 0) {
    GTEST_SKIP() << "no mpirun here (Debian: openmpi-bin)";
  }
  const int port = testing::free_port();
  std::vector<std::string> command{"mpirun",
                                   "--allow-run-as-root",
                                   "--oversubscribe",
                                   "-n",
                                   "2",
                                   "-x",
                                   "MASTER_PORT=" + std::to_string(port),
                                   "-x",
                                   "OMP_NUM_THREADS=1"};
  for (const std::string& argument : training("mpirun")) command.push_back(argument);
  const ProgramResult result = testing::run(command);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(last_loss("mpirun"), "");
  EXPECT_EQ(last_loss("mpirun"), loss_under_fsdp_launch());
}

TEST_F(OtherLaunchers, ModelsTrainedOverMpiAreTheSame) {
  if (const std::string why = why_no_mpi(); !why.empty()) GTEST_SKIP() << why;
  const ProgramResult result = testing::run(over_mpi("mpi"));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(last_loss("mpi"), "");
  EXPECT_EQ(last_loss("mpi"), loss_under_fsdp_launch());
}

TEST_F(OtherLaunchers, AStepOverMpiMovesTheBytesOfTheFormula) {
  if (const std::string why = why_no_mpi(); !why.empty()) GTEST_SKIP() << why;
  std::vector<std::string> command = over_mpi("explained");
  command.emplace_back("--explain-step");
  expect_bytes_of_the_formula(testing::run(command), "2 ranks over mpi, full_shard");
}

TEST_F(OtherLaunchers, AStepOverSharedMemoryAndMpiMovesTheBytesOfTheFormula) {
  std::string why = why_no_mpi();
  if (why.empty()) why = testing::NetworkHosts::missing();
  if (why.empty() && testing::run({"mpirun", "--version"}).out.find("Open MPI") == std::string::npos) {
    why = "Open MPI alone knows these options";
  }
  if (!why.empty()) GTEST_SKIP() << why;
  const testing::NetworkHosts hosts(2);
  std::vector<std::string> command{"mpirun",
                                   "--allow-run-as-root",
                                   "--oversubscribe",
                                   "--mca",
                                   "plm_rsh_agent",
                                   agent_for(hosts),
                                   "--host",
                                   hosts.address(0) + ":2," + hosts.address(1) + ":2",
                                   "-n",
                                   "4",
                                   "-x",
                                   "OMP_NUM_THREADS=1"};
  for (const std::string& argument : training("explained")) command.push_back(argument);
  command.insert(command.end(), {"comm.backend=hierarchical_mpi", "--explain-step"});
  expect_bytes_of_the_formula(testing::run(hosts.on(0, command)),
                              "4 ranks over hierarchical_mpi, full_shard");
}

TEST_F(OtherLaunchers, RanksOverMpiShowWhoWaitsForWhom) {
  if (const std::string why = why_no_mpi(); !why.empty()) GTEST_SKIP() << why;
  std::vector<std::string> command = over_mpi("late");
  command.emplace_back("comm.timeout_seconds=3");
  const ProgramResult result =
      testing::run(command, {.env = {{"FSDP_INJECT_FAULT", "rank=1,step=3,at=forward,do=sleep:30"}}});
  EXPECT_NE(result.exit_code, 0);
  EXPECT_LT(result.seconds, 28) << "the ranks that wait end the one that sleeps";
  const size_t table = result.err.find("state of the ranks:\n    rank 0 (pid ");
  ASSERT_NE(table, std::string::npos) << result.err;
  EXPECT_EQ(result.err.find("state of the ranks:", table + 1), std::string::npos) << "shown by one";
  EXPECT_NE(result.err.find("    rank 0 waits in ", table), std::string::npos) << result.err;
  EXPECT_NE(result.err.find(", step 3, for rank 1, which is computing, step 3, ", table), std::string::npos)
      << result.err;
}

TEST_F(OtherLaunchers, WithoutAModuleMpiSaysWhatIsMissing) {
  std::vector<std::string> command = training("none");
  command.push_back("comm.backend=mpi");
  const ProgramResult result = testing::run(command, {.env = {{"FSDP_MPI_MODULE", "/nowhere/fsdp_mpi.so"}}});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_NE(result.err.find("comm.backend = \"mpi\" requires the module fsdp_mpi.so"), std::string::npos)
      << result.err;
  EXPECT_NE(result.err.find("install an MPI"), std::string::npos) << result.err;
}

TEST_F(OtherLaunchers, SrunsVariablesAreEnough) {
  std::vector<std::unique_ptr<RunningProgram>> ranks;
  const std::string port = std::to_string(testing::free_port());
  for (int rank = 0; rank < 2; ++rank) {
    const std::string number = std::to_string(rank);
    ranks.push_back(std::make_unique<RunningProgram>(
        training("srun"), testing::RunOptions{.env = {{"SLURM_PROCID", number},
                                                      {"SLURM_LOCALID", number},
                                                      {"SLURM_NODEID", "0"},
                                                      {"SLURM_STEP_NUM_TASKS", "2"},
                                                      {"SLURM_STEP_TASKS_PER_NODE", "2"},
                                                      {"SLURM_STEP_NODELIST", "node7"},
                                                      {"SLURM_JOB_ID", "77"},
                                                      {"MASTER_PORT", port},
                                                      {"OMP_NUM_THREADS", "1"}}}));
  }
  for (auto& rank : ranks) {
    const ProgramResult result = rank->wait();
    EXPECT_EQ(result.exit_code, 0) << result.err;
  }
  EXPECT_NE(last_loss("srun"), "");
  EXPECT_EQ(last_loss("srun"), loss_under_fsdp_launch());
}

}  // namespace
}  // namespace fsdp::e2e
