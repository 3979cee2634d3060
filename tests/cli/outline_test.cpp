#include "cli/outline.h"

#include <gtest/gtest.h>

#include "cli/cli_fixtures.h"

namespace fsdp::cli {
namespace {

using Words = std::vector<std::string>;

TEST(Outline, HasWhatCli11Has) {
  const Outline outline = outline_of(*sample_app());
  ASSERT_EQ(outline.positionals.size(), 2u);
  EXPECT_TRUE(outline.positionals[0].required);
  EXPECT_TRUE(outline.positionals[1].repeats);
  EXPECT_TRUE(takes_words(outline));
  ASSERT_EQ(outline.flags.size(), 4u) << "the help flag and three others";
  EXPECT_EQ(outline.flags[1].names, (Words{"-q", "--quiet"}));
  EXPECT_FALSE(outline.flags[0].takes_value);
  EXPECT_FALSE(outline.flags[1].takes_value);
  EXPECT_EQ(outline.flags[2].names, Words{"--log-dir"});
  EXPECT_TRUE(outline.flags[2].takes_value);
  EXPECT_EQ(outline.flags[3].values, (Words{"json", "text"}));
  ASSERT_EQ(outline.commands.size(), 1u);
  EXPECT_EQ(outline.commands[0].positionals.at(0).values, (Words{"small", "large"}));
  EXPECT_FALSE(takes_words(outline.commands[0]));
  EXPECT_EQ(usage_of(outline), "[OPTIONS] config [overrides...]");
}

}  // namespace
}  // namespace fsdp::cli
