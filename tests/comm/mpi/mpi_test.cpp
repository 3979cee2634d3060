// Ranks over MPI, which are processes that mpirun starts: those of Open MPI, or of another MPI that is
// installed as mpirun.

#include <gmock/gmock.h>

#include <filesystem>
#include <string>
#include <vector>

#include "support/program_path.h"
#include "support/run_program.h"

namespace fsdp::comm {
namespace {

using ::testing::HasSubstr;
using testing::ProgramResult;

std::string why_not() {
  const std::filesystem::path bin = std::filesystem::path(testing::program_path("comm_test")).parent_path();
  if (testing::run({"/bin/sh", "-c", "command -v mpirun"}).exit_code != 0)
    return "no mpirun here (Debian: openmpi-bin)";
  if (!std::filesystem::exists(bin.parent_path() / "lib" / "fsdp" / "fsdp_mpi.so")) {
    return "built without the module of comm.backend = \"mpi\" (Debian: libopenmpi-dev)";
  }
  return "";
}

class Mpi : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = why_not(); !why.empty()) GTEST_SKIP() << why;
  }

  static ProgramResult run(int count, const std::vector<std::string>& arguments) {
    std::vector<std::string> command{"mpirun"};
    // Open MPI refuses root and more processes than cores; others do not know these options.
    if (testing::run({"mpirun", "--version"}).out.find("Open MPI") != std::string::npos) {
      command.insert(command.end(), {"--allow-run-as-root", "--oversubscribe"});
    }
    command.insert(command.end(), {"-n", std::to_string(count)});
    command.insert(command.end(), arguments.begin(), arguments.end());
    testing::RunOptions options{
        .env = {{"OMP_NUM_THREADS", "1"}, {"FSDP_TEST_MPI", "1"}, {"GTEST_BRIEF", "0"}},
        .timeout_seconds = 300};
    // Other tests of this program set them.
    for (const char* name :
         {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "SLURM_STEP_NUM_TASKS"}) {
      options.env[name] = std::nullopt;
    }
    return testing::run(command, options);
  }

  static ProgramResult run_with(const std::string& fault) {
    const ProgramResult result = run(3, {testing::program_path("mpi_ranks"), fault});
    EXPECT_NE(result.exit_code, 0) << result.err;
    EXPECT_FALSE(result.timed_out);
    return result;
  }
};

TEST_F(Mpi, KeepsThePromisesOfCommunicators) {
  const ProgramResult result = run(6, {testing::program_path("comm_test"), "--gtest_filter=Mpi/*"});
  EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
  EXPECT_THAT(result.out, HasSubstr("Mpi/Collectives.ReduceScatterAddsInRankOrderAndRoundsOnce/mpi_5"));
  EXPECT_THAT(result.out, HasSubstr("Mpi/Collectives.BroadcastCopiesTheRoot/mpi_pieces_3"));
  EXPECT_THAT(result.out, HasSubstr("Mpi/Subgroups."));
}

TEST_F(Mpi, NamesARankThatIsKilled) {
  const ProgramResult result = run_with("killed");
  if (result.err.find("BAD TERMINATION") != std::string::npos ||
      result.out.find("BAD TERMINATION") != std::string::npos) {
    GTEST_SKIP() << "this mpirun kills the other ranks at once, and names the one that died";
  }
  EXPECT_THAT(result.err,
              HasSubstr("all_reduce of test (other) failed on rank 0 of 3: a process of the run is gone; "
                        "no answer from rank 2 ("));
  EXPECT_THAT(result.err, HasSubstr("the process of rank 2 has ended)"));
}

TEST_F(Mpi, NamesARankThatLeavesWithAnError) {
  const ProgramResult result = run_with("leaves");
  EXPECT_THAT(result.err, HasSubstr("the last rank has found something else"));
  EXPECT_THAT(result.err,
              HasSubstr("failed on rank 0 of 3: a process of the run is gone; no answer from rank 2"));
}

TEST_F(Mpi, NamesARankThatDoesNotComeInTime) {
  const ProgramResult result = run_with("late");
  EXPECT_THAT(result.err, HasSubstr("all_reduce of test (other) failed on rank 0 of 3: no result within 1 s "
                                    "(comm.timeout_seconds); no answer from rank 2"));
}

TEST_F(Mpi, TellsCollectivesApart) {
  const ProgramResult result = run_with("elsewhere");
  EXPECT_THAT(result.err,
              HasSubstr("rank 2 is in another collective (broadcast of another (other), 50000 elements) than "
                        "this rank, which is in all_reduce of test (other), 50000 elements"));
}

}  // namespace
}  // namespace fsdp::comm
