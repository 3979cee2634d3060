#include "base/cli/help.h"

#include <gtest/gtest.h>

#include <sstream>
#include <string>
#include <vector>

#include "base/cli/cli_fixtures.h"
#include "base/cli/program.h"

namespace fsdp::cli {
namespace {

std::string help_of(const std::vector<const char*>& words, int columns) {
  const auto app = sample_app();
  std::vector<const char*> arguments = {"my-tool"};
  arguments.insert(arguments.end(), words.begin(), words.end());
  app->formatter(help_formatter(
      sample_page(), {.is_short = asks_for_short_help(static_cast<int>(arguments.size()), arguments.data()),
                      .columns = columns}));
  return app->help();
}

TEST(Help, BreaksLinesBetweenWordsBelowTheSecondColumn) {
  EXPECT_EQ(wrapped("one two three\n", 8), "one two\n    three\n");
  EXPECT_EQ(wrapped("  --name  what it is for\n", 16), "  --name  what\n      it is for\n");
  EXPECT_EQ(wrapped("  -n  what it is for\n", 16), "  -n  what it is\n      for\n");
  EXPECT_EQ(wrapped("short\n\nlines\n", 16), "short\n\nlines\n");
  EXPECT_EQ(wrapped("a-word-that-is-too-long and more\n", 8), "a-word-that-is-too-long\n    and\n    more\n");
  EXPECT_EQ(wrapped("a-word-that-is-too-long\n", 8), "a-word-that-is-too-long\n");
}

TEST(Help, IsShortForTheShortOption) {
  EXPECT_TRUE(asks_for_short_help(2, std::vector<const char*>{"x", "-h"}.data()));
  EXPECT_TRUE(asks_for_short_help(3, std::vector<const char*>{"x", "init", "-h"}.data()));
  EXPECT_FALSE(asks_for_short_help(2, std::vector<const char*>{"x", "--help"}.data()));
  EXPECT_FALSE(asks_for_short_help(4, std::vector<const char*>{"x", "--help", "y", "-h"}.data()));
  EXPECT_FALSE(asks_for_short_help(4, std::vector<const char*>{"x", "--", "y", "-h"}.data()));
  const std::string text = help_of({"-h"}, 80);
  EXPECT_TRUE(text.starts_with("Does it\nUsage: my-tool [OPTIONS] config [overrides...] [SUBCOMMAND]\n"))
      << text;
  for (const char* line :
       {"\nExamples:\n  my-tool config.toml\n  my-tool init small\n",
        "\nCommands:\n  init                write a config\n",
        "\n  --quiet             say less: it's calm\n", "\nmy-tool --help describes all of it\n"}) {
    EXPECT_NE(text.find(line), std::string::npos) << line << text;
  }
  EXPECT_EQ(text.find("--hidden"), std::string::npos);
}

TEST(Help, IsWrappedToTheWidthAndComplete) {
  for (const int columns : {40, 60, 100}) {
    const std::string text = help_of({"--help"}, columns);
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
      EXPECT_LE(line.size(), static_cast<size_t>(columns)) << line;
    }
    for (const char* word : {"--quiet", "--log-dir", "--format", "--count", "init", "man-page"}) {
      EXPECT_NE(text.find(word), std::string::npos) << word;
    }
  }
}

}  // namespace
}  // namespace fsdp::cli
