// What every program says of itself.

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <regex>
#include <sstream>
#include <string>
#include <utility>
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

/// The commands of a program, as its completions know them.
std::vector<std::string> commands_of(const std::string& completions) {
  std::vector<std::string> commands;
  std::istringstream lines(completions);
  for (std::string line; std::getline(lines, line);) {
    const size_t begin = line.find("\t0\t");  // a row of the first positional argument
    if (begin != 0) continue;
    const std::string word = line.substr(3, line.find('\t', 3) - 3);
    if (word != "/" && word != "completions" && word != "man-page") commands.push_back(word);
  }
  return commands;
}

TEST_P(Programs, HaveAShortHelpThatFitsAScreen) {
  std::vector<std::vector<std::string>> questions = {{"-h"}};
  for (const std::string& command : commands_of(run({"completions", "bash"}).out)) {
    questions.push_back({command, "-h"});
  }
  for (const std::vector<std::string>& question : questions) {
    const auto result = run(question);
    EXPECT_EQ(result.exit_code, 0) << question.front();
    EXPECT_LE(std::count(result.out.begin(), result.out.end(), '\n'), 24) << result.out;
    EXPECT_NE(result.out.find("\nUsage: " + GetParam()), std::string::npos) << result.out;
    EXPECT_NE(result.out.find(" --help describes all of it"), std::string::npos) << result.out;
    std::istringstream lines(result.out);
    for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 80u) << line;
  }
}

TEST_P(Programs, WrapTheirHelp) {
  const std::string program = testing::program_path(GetParam());
  for (const size_t columns : {60u, 100u}) {
    const auto result = testing::run({program, "--help"}, {.env = {{"COLUMNS", std::to_string(columns)}}});
    std::istringstream lines(result.out);
    for (std::string line; std::getline(lines, line);) {
      // Only a single word, such as a list of defaults, may be longer.
      const size_t begin = line.find_first_not_of(' ');
      const bool is_word = begin != std::string::npos && line.find(' ', begin) == std::string::npos;
      EXPECT_TRUE(line.size() <= columns || is_word) << line;
    }
  }
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

TEST(FsdpTrain, HasOneFormForAllActions) {
  testing::TemporaryFolder folder;
  const std::string config = folder / "config.toml", out = folder / "run";
  std::ofstream(config) << "[data]\ntrain = \"none.bin\"\n";
  std::filesystem::create_directories(out);
  std::ofstream(out + "/metrics.jsonl") << "{\"step\":1,\"loss\":2.5}\n";
  const auto train = [&](std::vector<std::string> words) {
    words.insert(words.begin(), testing::program_path("fsdp-train"));
    return testing::run(words);
  };
  const std::vector<std::pair<std::vector<std::string>, std::vector<std::string>>> forms = {
      {{"plan", config, "training.steps=7", "--world-size", "4"},
       {config, "training.steps=7", "--plan", "--world-size", "4"}},
      {{"plan", config, "--json"}, {config, "--plan", "--json"}},
      {{"print-config", config, "run.seed=3"}, {config, "run.seed=3", "--print-config"}},
      {{"print-config", config, "--json"}, {config, "--print-config", "--json"}},
      {{"report", out, "--output", folder / "a.html"}, {"--report", out, "--output", folder / "a.html"}},
      {{"report", out, out, "--output", folder / "b.html"},
       {"--report", out, out, "--output", folder / "b.html"}},
      {{"watch", out}, {"--watch", out}},
      {{"evaluate", config, folder / "no-weights"}, {config, "--evaluate", folder / "no-weights"}},
      {{"explain-step", config}, {config, "--explain-step"}},
      {{"profile-start", config}, {config, "--profile-start"}}};
  for (const auto& [command, options] : forms) {
    const auto first = train(command), second = train(options);
    EXPECT_EQ(first.exit_code, second.exit_code) << command.front();
    const std::regex age("\\d+s ago");
    EXPECT_EQ(std::regex_replace(first.out, age, ""), std::regex_replace(second.out, age, ""))
        << command.front();
    EXPECT_EQ(first.err, second.err) << command.front();
    EXPECT_NE(first.out + first.err, "") << command.front();
  }
}

TEST(FsdpTrain, SaysWhereTheWordsOfAnActionBelong) {
  testing::TemporaryFolder folder;
  std::ofstream(folder / "config.toml") << "[data]\ntrain = \"none.bin\"\n";
  const std::string config = folder / "config.toml";
  const std::vector<std::pair<std::vector<std::string>, std::string>> mistakes = {
      {{"plan"}, "expected fsdp-train plan with TOML file; found none; see fsdp-train plan --help"},
      {{"report"}, "expected fsdp-train report with folders of runs; found none"},
      {{"evaluate", config}, "expected fsdp-train evaluate with weights; found none"},
      {{config, "plan"}, "expected the command plan as the first argument; found it after \"" + config},
      {{"--plan", "report", "run"}, "expected options after the command report; found --plan before it"},
      {{"plan", config, "--timeline", "x.svg"}, "expected an option of fsdp-train plan; found --timeline"},
      {{"watch", "a", "b"}, "found b in addition"}};
  for (const auto& [words, message] : mistakes) {
    std::vector<std::string> command = {testing::program_path("fsdp-train")};
    command.insert(command.end(), words.begin(), words.end());
    const auto result = testing::run(command);
    EXPECT_EQ(result.exit_code, 2) << message;
    EXPECT_NE(result.err.find(message), std::string::npos) << result.err;
    EXPECT_EQ(result.out, "");
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
