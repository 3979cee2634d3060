// What every program says of itself.

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "base/cli/page.h"
#include "support/program_path.h"
#include "support/run_program.h"
#include "support/temporary_folder.h"

namespace fsdp::cli {
namespace {

class Programs : public ::testing::TestWithParam<std::string> {
 protected:
  testing::ProgramResult run(std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(), testing::program_path(GetParam()));
    return testing::run(arguments);
  }
};

TEST_P(Programs, SayTheirVersion) {
  const auto result = run({"--version"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.out, version_text(GetParam()) + "\n");
  EXPECT_NE(result.out.find("\nlibtorch 2."), std::string::npos);
}

TEST_P(Programs, BeginTheirHelpWithExamples) {
  const auto result = run({"--help"});
  EXPECT_EQ(result.exit_code, 0);
  const size_t examples = result.out.find("\nExamples:\n"), usage = result.out.find("\nUsage: ");
  ASSERT_NE(examples, std::string::npos);
  EXPECT_LT(examples, usage);
  EXPECT_NE(result.out.find("\n  " + GetParam() + " ", examples), std::string::npos);
  EXPECT_NE(result.out.find("--version"), std::string::npos);
}

TEST_P(Programs, AreCompletedByBash) {
  const std::string program = testing::program_path(GetParam());
  const auto result =
      testing::run({"bash", "-c", "source <(" + program + " completions bash) && complete -p " + GetParam()});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.err, "");
  EXPECT_NE(result.out.find("complete -F _fsdp-"), std::string::npos) << result.out;
}

TEST_P(Programs, HaveScriptsThatTheirShellsRead) {
  int checked = 0;
  for (const std::string shell : {"bash", "zsh", "fish"}) {
    testing::TemporaryFolder folder;
    const auto script = run({"completions", shell});
    EXPECT_EQ(script.exit_code, 0);
    std::ofstream(folder / "script") << script.out;
    if (testing::run({"sh", "-c", "command -v " + shell}).exit_code != 0) continue;
    ++checked;
    const auto result =
        testing::run({shell, "-n", folder / "script"}, {.env = {{"HOME", folder.path().string()}}});
    EXPECT_EQ(result.exit_code, 0) << shell << result.err;
    EXPECT_EQ(result.err, "") << shell;
  }
  EXPECT_GE(checked, 1);
}

TEST_P(Programs, RefuseOtherShellsByName) {
  const auto result = run({"completions", "tcsh"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_NE(result.err.find("bash, zsh or fish"), std::string::npos);
  EXPECT_NE(result.err.find("tcsh"), std::string::npos);
  EXPECT_EQ(result.out, "");
}

TEST_P(Programs, HaveAManPageWithoutWarnings) {
  testing::TemporaryFolder folder;
  const auto page = run({"man-page"});
  EXPECT_EQ(page.exit_code, 0);
  EXPECT_TRUE(page.out.starts_with(".TH " + GetParam() + " 1 ")) << page.out.substr(0, 80);
  std::ofstream(folder / "page.1") << page.out;
  int checked = 0;
  const auto is_there = [](const std::string& tool) {
    return testing::run({"sh", "-c", "command -v " + tool}).exit_code == 0;
  };
  if (is_there("groff")) {
    const auto result = testing::run({"groff", "-man", "-Tutf8", "-ww", "-z", folder / "page.1"});
    EXPECT_EQ(result.exit_code, 0);
    EXPECT_EQ(result.err, "");
    ++checked;
  }
  if (is_there("mandoc")) {
    // The pages have no date: they are as old as the program.
    const auto result = testing::run(
        {"sh", "-c",
         "mandoc -Tlint -Wwarning " + (folder / "page.1").string() + " | grep -v 'missing date'"});
    EXPECT_EQ(result.out, "");
    ++checked;
  }
  if (checked == 0) GTEST_SKIP() << "neither groff nor mandoc here";
}

TEST_P(Programs, FailWhereTheirAnswerCannotBePrinted) {
  const std::string program = testing::program_path(GetParam());
  for (const std::string question : {"--help", "--version", "man-page", "completions bash"}) {
    const auto result = testing::run({"sh", "-c", program + " " + question + " > /dev/full"});
    EXPECT_EQ(result.exit_code, 7) << question;
    EXPECT_EQ(result.err, "error: cannot write to standard output\n") << question;
  }
}

TEST(FsdpTrain, FailsWhereTheConfigCannotBePrinted) {
  testing::TemporaryFolder folder;
  std::ofstream(folder / "config.toml") << "[data]\ntrain = [\"none.bin\"]\n";
  const std::string program = testing::program_path("fsdp-train") + " ";
  const std::string config = (folder / "config.toml").string();
  for (const std::string& words : {config + " --print-config", config + " --plan", std::string("doctor")}) {
    const auto result = testing::run({"sh", "-c", program + words + " > /dev/full"});
    EXPECT_EQ(result.exit_code, 7) << words;
    EXPECT_EQ(result.err, "error: cannot write to standard output\n") << words;
  }
}

TEST(FsdpTrain, TakesNoEmptyWordForAnOptionThatIsNotGiven) {
  testing::TemporaryFolder folder;
  std::ofstream(folder / "config.toml") << "[run]\noutput_dir = \"" << (folder / "run").string() << "\"\n";
  const std::string config = folder / "config.toml";
  // As `--evaluate "$WEIGHTS"` would have it; to train then would be the opposite of writing no file.
  for (const std::vector<std::string>& words : {std::vector<std::string>{config, "--evaluate", ""},
                                                {"--report", ""},
                                                {"init", "--output", ""},
                                                {"doctor", ""},
                                                {""}}) {
    std::vector<std::string> command = {testing::program_path("fsdp-train")};
    command.insert(command.end(), words.begin(), words.end());
    const auto result = testing::run(command);
    EXPECT_EQ(result.exit_code, 2) << words.front();
    EXPECT_NE(result.err.find("found an empty argument"), std::string::npos) << words.front() << result.err;
    EXPECT_EQ(result.out, "");
  }
  EXPECT_FALSE(std::filesystem::exists(folder / "run"));
}

INSTANTIATE_TEST_SUITE_P(All, Programs,
                         ::testing::Values("fsdp-train", "fsdp-launch", "fsdp-ckpt", "fsdp-data",
                                           "fsdp-generate", "fsdp-plan"),
                         [](const auto& info) { return info.param.substr(5); });

TEST(FsdpTrainCompletions, CompleteAKeyAndItsValue) {
  const std::string program = testing::program_path("fsdp-train");
  const std::string script = "source <(" + program + " completions bash)\n";
  const auto offered = [&](const std::string& words, int at) {
    return testing::run({"bash", "-c",
                         script + "COMP_WORDS=(fsdp-train " + words + "); COMP_CWORD=" + std::to_string(at) +
                             "; _fsdp-train; echo \"${COMPREPLY[@]}\""})
        .out;
  };
  EXPECT_EQ(offered("c.toml training.ste", 2), "training.steps=\n");
  EXPECT_EQ(offered("c.toml fsdp.layout = per", 4), "per_parameter\n");
}

}  // namespace
}  // namespace fsdp::cli
