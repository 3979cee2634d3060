// What a person sees of a run on a terminal, through the launcher.

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <regex>

#include "e2e/programs.h"

namespace fsdp::e2e {
namespace {

TEST(ProgressOnATerminal, IsOneLineDrawnOverAndLeftAtTheEnd) {
  if (!testing::terminal_can_be_made()) GTEST_SKIP() << "no pseudo-terminals here";
  testing::TemporaryFolder folder;
  testing::write_token_file(folder / "train.bin", 2000, 17);
  std::ofstream(folder / "config.toml") << kOddModel;
  const auto run = [&](std::vector<std::string> command, const std::string& steps) {
    for (const std::string& word :
         {program("fsdp-train"), (folder / "config.toml").string(),
          "run.output_dir=" + (folder / "out").string(),
          "data.train=[\"" + (folder / "train.bin").string() + "\"]", "training.steps=" + steps}) {
      command.push_back(word);
    }
    return testing::run(command, {.env = {{"OMP_NUM_THREADS", "1"}}, .terminal_columns = 150});
  };
  auto result = run({program("fsdp-launch"), "--nproc-per-node", "2", "--"}, "5");
  EXPECT_EQ(result.exit_code, 0) << result.out;
  EXPECT_NE(result.out.find("\r\033[K[rank0]"), std::string::npos) << result.out;
  EXPECT_NE(result.out.find("5/5 [####"), std::string::npos) << result.out;
  EXPECT_NE(result.out.find("tok/s"), std::string::npos) << result.out;
  EXPECT_EQ(result.out.find("reading the checkpoint"), std::string::npos) << result.out;
  // The launcher leaves out a line that is drawn over at once.
  result = run({}, "6");
  EXPECT_NE(result.out.find("drawing weights ["), std::string::npos) << result.out;
  EXPECT_NE(result.out.find("reading the checkpoint ["), std::string::npos) << result.out;
}

TEST(Timestamps, BeginTheLinesOfTheLogOnRequest) {
  testing::TemporaryFolder folder;
  testing::write_token_file(folder / "train.bin", 2000, 17);
  std::ofstream(folder / "config.toml") << kOddModel;
  const auto lines_with_times = [&](const std::string& wanted) {
    const auto result = testing::run({program("fsdp-train"), (folder / "config.toml").string(),
                                      "run.output_dir=" + (folder / wanted).string(),
                                      "data.train=[\"" + (folder / "train.bin").string() + "\"]",
                                      "training.steps=3", "logging.timestamps=" + wanted},
                                     {.env = {{"OMP_NUM_THREADS", "1"}}});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    const std::regex line("(^|\n)\\d{4}-\\d\\d-\\d\\dT\\d\\d:\\d\\d:\\d\\d\\.\\d{3}Z (info: |step [123]/3 )");
    return std::distance(std::sregex_iterator(result.err.begin(), result.err.end(), line),
                         std::sregex_iterator());
  };
  EXPECT_EQ(lines_with_times("false"), 0);
  EXPECT_GE(lines_with_times("true"), 5) << "three steps, the banner and the save";
}

}  // namespace
}  // namespace fsdp::e2e
