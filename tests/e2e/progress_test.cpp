// What a person sees of a run on a terminal, through the launcher.

#include <gtest/gtest.h>

#include "e2e/programs.h"

namespace fsdp::e2e {
namespace {

TEST(ProgressOnATerminal, IsOneLineDrawnOverAndLeftAtTheEnd) {
  if (!testing::terminal_can_be_made()) GTEST_SKIP() << "no pseudo-terminals here";
  testing::TemporaryFolder folder;
  testing::write_token_file(folder / "train.bin", 2000, 17);
  std::ofstream(folder / "config.toml") << kOddModel;
  auto result =
      testing::run({program("fsdp-launch"), "--nproc-per-node", "2", "--", program("fsdp-train"),
                    (folder / "config.toml").string(), "run.output_dir=" + (folder / "out").string(),
                    "data.train=[\"" + (folder / "train.bin").string() + "\"]", "training.steps=5"},
                   {.env = {{"OMP_NUM_THREADS", "1"}}, .terminal_columns = 150});
  EXPECT_EQ(result.exit_code, 0) << result.out;
  EXPECT_NE(result.out.find("\r\033[K[rank0]"), std::string::npos) << result.out;
  EXPECT_NE(result.out.find("5/5 [####"), std::string::npos) << result.out;
  EXPECT_NE(result.out.find("tok/s"), std::string::npos) << result.out;
}

}  // namespace
}  // namespace fsdp::e2e
