// What released versions have written is read (docs/compatibility.md). tests/e2e/stored/VERSION has the
// config and the checkpoint, after 2 steps on 2 processes, of a run of that version in each layout; nothing
// there is ever written anew.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "e2e/programs.h"
#include "support/source_folder.h"
#include "support/tiny_config.h"

namespace fsdp::e2e {
namespace {

namespace fs = std::filesystem;

/// "VERSION/LAYOUT"; the layouts' checkpoints have the format versions 1 and 2.
class StoredRun : public ::testing::TestWithParam<std::string> {
 protected:
  StoredRun() {
    fs::copy(fs::path(testing::source_folder()) / "tests/e2e/stored" / GetParam(), run_,
             fs::copy_options::recursive);
    testing::write_token_file(folder_ / "train.bin", 4 * 4 * 8 + 1, 17);
  }

  testing::ProgramResult run(std::vector<std::string> command) {
    command[0] = program(command[0]);
    return testing::run(command, {.env = {{"OMP_NUM_THREADS", "1"}}, .working_folder = folder_.path()});
  }

  testing::TemporaryFolder folder_;
  fs::path run_ = folder_ / "run";
};

TEST_P(StoredRun, GoesOnToTheLossesOfItsVersion) {
  testing::ProgramResult trained = run({"fsdp-launch", "--nproc-per-node", "2", "--", program("fsdp-train"),
                                        "run/config.toml", "run.output_dir=run", "training.steps=4"});
  ASSERT_EQ(trained.exit_code, 0) << trained.err;
  // Another processor may sum in another order.
  EXPECT_THAT(
      testing::values_of(run_ / "metrics.jsonl", "loss"),
      ::testing::ElementsAre(::testing::DoubleNear(2.9554149, 1e-4), ::testing::DoubleNear(2.6998180, 1e-4)));
}

TEST_P(StoredRun, IsIntactForFsdpCkpt) {
  testing::ProgramResult verified = run({"fsdp-ckpt", "verify", "run"});
  EXPECT_EQ(verified.exit_code, 0) << verified.err;
  testing::ProgramResult consolidated = run({"fsdp-ckpt", "consolidate", "run", "weights.safetensors"});
  EXPECT_EQ(consolidated.exit_code, 0) << consolidated.err;
}

INSTANTIATE_TEST_SUITE_P(Compatibility, StoredRun, ::testing::Values("0.2.0/flat", "0.2.0/per_parameter"),
                         [](const auto& info) {
                           std::string name = info.param;
                           for (char& c : name) c = c == '.' || c == '/' ? '_' : c;
                           return name;
                         });

}  // namespace
}  // namespace fsdp::e2e
