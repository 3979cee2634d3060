#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <set>
#include <sstream>

#include "base/cli/cli_fixtures.h"
#include "base/cli/shell_files.h"
#include "base/util/text.h"
#include "support/run_program.h"
#include "support/temporary_folder.h"

namespace fsdp::cli {
namespace {

using Words = std::vector<std::string>;
using Set = std::set<std::string>;

std::string script_for(const std::string& shell, const Page& page = sample_page()) {
  return completions(*sample_app(), page, shell).value();
}

Set lines_of(const std::string& text) {
  Set lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.insert(line);
  return lines;
}

bool is_there(const std::string& shell) {
  return testing::run({"sh", "-c", "command -v " + shell}).exit_code == 0;
}

/// What bash would offer for the words, in which "=" is one of its own, in a folder with a file c.toml.
Set completed_by_bash(const Words& words, const std::string& before = "") {
  testing::TemporaryFolder folder;
  std::ofstream(folder / "script") << script_for("bash");
  std::ofstream(folder / "c.toml") << "";
  std::string line = before + "\nsource ./script\nCOMP_WORDS=(my-tool";
  for (const std::string& word : words) line += " " + util::shell_word(word);
  line += ")\nCOMP_CWORD=" + std::to_string(words.size()) +
          "\n_my-tool\nfor reply in \"${COMPREPLY[@]}\"; do echo \"$reply\"; done\n";
  const auto result = testing::run({"bash", "-c", line}, {.working_folder = folder.path()});
  EXPECT_EQ(result.err, "") << line;
  return lines_of(result.out);
}

TEST(BashCompletions, OfferFilesAndCommandsFirst) {
  EXPECT_EQ(completed_by_bash({""}), (Set{"init", "completions", "man-page", "c.toml", "script"}));
  EXPECT_EQ(completed_by_bash({"c"}), (Set{"completions", "c.toml"}));
  EXPECT_EQ(completed_by_bash({"init", ""}), (Set{"small", "large"}));
  EXPECT_EQ(completed_by_bash({"completions", ""}), (Set{"bash", "zsh", "fish"}));
}

TEST(BashCompletions, OfferKeysBehindTheConfigAndValuesBehindAKey) {
  EXPECT_EQ(completed_by_bash({"c.toml", "run."}), (Set{"run.name=", "run.mode="}));
  EXPECT_EQ(completed_by_bash({"c.toml", "run.mode", "="}), (Set{"fast", "slow"}));
  EXPECT_EQ(completed_by_bash({"c.toml", "run.mode", "=", "s"}), (Set{"slow"}));
  EXPECT_EQ(completed_by_bash({"c.toml", "run.mode", "=", "slow", "model."}), (Set{"model.size="}));
  EXPECT_EQ(completed_by_bash({"c.toml", "run.name", "=", ""}), Set{});
  EXPECT_EQ(completed_by_bash({"c.toml", "run.mode=f"}, "COMP_WORDBREAKS=' '"), Set{"run.mode=fast"});
}

TEST(BashCompletions, OfferOptionsOfTheCommandAndTheirValues) {
  EXPECT_EQ(completed_by_bash({"--"}), (Set{"--help", "--quiet", "--log-dir", "--format", "--count"}));
  EXPECT_EQ(completed_by_bash({"init", "--o"}), Set{"--output"});
  EXPECT_EQ(completed_by_bash({"--format", ""}), (Set{"json", "text"}));
  EXPECT_EQ(completed_by_bash({"--log-dir", "scr"}), Set{"script"});
  EXPECT_EQ(completed_by_bash({"--count", ""}), Set{}) << "a number is no file";
  EXPECT_EQ(completed_by_bash({"--format", "json", "c"}), (Set{"completions", "c.toml"}))
      << "the value of an option is no positional argument";
  EXPECT_EQ(completed_by_bash({"c.toml", "init", "model."}), Set{"model.size="})
      << "a command is one only in the first place";
}

TEST(BashCompletions, LeaveTheCommandLineOfAnotherProgramToThatOfBash) {
  Page page = sample_page();
  page.runs_program = true;
  testing::TemporaryFolder folder;
  std::ofstream(folder / "script") << script_for("bash", page);
  const std::string line =
      "source ./script; _command_offset() { echo \"offset $1\"; }\n"
      "COMP_WORDS=(my-tool --quiet -- other --f); COMP_CWORD=4; _my-tool";
  EXPECT_EQ(testing::run({"bash", "-c", line}, {.working_folder = folder.path()}).out, "offset 3\n");
}

/// Runs the function in zsh with the functions of its completion system replaced by ones that print.
Set completed_by_zsh(const Words& words, const Page& page = sample_page()) {
  testing::TemporaryFolder folder;
  std::ofstream(folder / "script") << script_for("zsh", page);
  std::string line = "compdef() { :; }\nsource ./script\n_files() { echo files; }\n" +
                     std::string("_describe() { print -l -- ${(P)2}; [[ -z $3 ]] || echo \"$3\"; }\n") +
                     "_normal() { echo \"$CURRENT of $words\"; }\nwords=(my-tool";
  for (const std::string& word : words) line += " " + util::shell_word(word);
  line += ")\nCURRENT=" + std::to_string(words.size() + 1) + "\n_my-tool\n";
  const auto result = testing::run({"zsh", "-f", "-c", line}, {.working_folder = folder.path()});
  EXPECT_EQ(result.err, "") << line;
  return lines_of(result.out);
}

TEST(ZshCompletions, OfferWhatBashOffersWithItsMeaning) {
  if (!is_there("zsh")) GTEST_SKIP() << "no zsh here";
  EXPECT_EQ(completed_by_zsh({""}),
            (Set{"init:write a config", "completions:print a script that completes my-tool",
                 "man-page:print the man page", "files"}));
  EXPECT_EQ(completed_by_zsh({"init", ""}), (Set{"small", "large"}));
  EXPECT_EQ(completed_by_zsh({"c.toml", ""}),
            (Set{"run.name=:name of the run", "run.mode=:how it runs", "model.size=:how large", "-S"}));
  EXPECT_EQ(completed_by_zsh({"c.toml", "run.mode="}), (Set{"run.mode=fast", "run.mode=slow"}));
  EXPECT_EQ(completed_by_zsh({"--format", ""}), (Set{"json", "text"}));
  EXPECT_EQ(completed_by_zsh({"--log-dir", ""}), Set{"files"});
  EXPECT_TRUE(completed_by_zsh({"--"}).contains("--quiet:say less: it's calm"));
}

TEST(ZshCompletions, LeaveTheCommandLineOfAnotherProgramToThatOfZsh) {
  if (!is_there("zsh")) GTEST_SKIP() << "no zsh here";
  Page page = sample_page();
  page.runs_program = true;
  EXPECT_EQ(completed_by_zsh({"--quiet", "--", "other", "--f"}, page), Set{"2 of other --f"});
}

/// The words alone, without what fish says of them.
Set completed_by_fish(const std::string& command_line, const Page& page = sample_page()) {
  testing::TemporaryFolder folder;
  std::ofstream(folder / "script") << script_for("fish", page);
  std::ofstream(folder / "c.toml") << "";
  const auto result = testing::run(
      {"fish", "--no-config", "-c", "source ./script; complete -C " + util::shell_word(command_line)},
      {.env = {{"HOME", folder.path().string()}}, .working_folder = folder.path()});
  EXPECT_EQ(result.err, "") << command_line;
  Set words;
  for (const std::string& line : lines_of(result.out)) words.insert(line.substr(0, line.find('\t')));
  return words;
}

TEST(FishCompletions, OfferWhatBashOffers) {
  if (!is_there("fish")) GTEST_SKIP() << "no fish here";
  const Set first = completed_by_fish("my-tool ");
  for (const char* word : {"init", "completions", "man-page", "c.toml"})
    EXPECT_TRUE(first.contains(word)) << word;
  EXPECT_FALSE(first.contains("run.name="));
  EXPECT_EQ(completed_by_fish("my-tool c.toml run."), (Set{"run.name=", "run.mode="}));
  EXPECT_EQ(completed_by_fish("my-tool c.toml run.mode="), (Set{"run.mode=fast", "run.mode=slow"}));
  EXPECT_EQ(completed_by_fish("my-tool --format "), (Set{"json", "text"}));
  EXPECT_TRUE(completed_by_fish("my-tool --q").contains("--quiet"));
  EXPECT_TRUE(completed_by_fish("my-tool init --o").contains("--output"));
  const Set presets = completed_by_fish("my-tool init ");
  EXPECT_TRUE(presets.contains("small") && presets.contains("large"));
}

TEST(FishCompletions, LeaveTheCommandLineOfAnotherProgramToThatOfFish) {
  if (!is_there("fish")) GTEST_SKIP() << "no fish here";
  Page page = sample_page();
  page.runs_program = true;
  EXPECT_TRUE(completed_by_fish("my-tool --quiet -- cat c.to", page).contains("c.toml"));
  EXPECT_EQ(completed_by_fish("my-tool -- my-tool c.toml run.", page), (Set{"run.name=", "run.mode="}));
}

TEST(Completions, AreThereForThreeShells) { EXPECT_FALSE(completions(*sample_app(), sample_page(), "tcsh")); }

}  // namespace
}  // namespace fsdp::cli
