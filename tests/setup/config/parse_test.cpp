#include "setup/config/parse.h"

#include <gtest/gtest.h>

#include <string>

namespace fsdp::config {
namespace {

TEST(ParseToml, KnowsWhereEachValueIs) {
  const Source source =
      Source::from_text("c.toml", "top = 1\n[a]\nb = \"x\"  # c\nlist = [1,\n  22, [3]]\nlast = 5");
  const auto entries = parse_toml(source);
  std::string places;
  for (const TomlEntry& entry : entries) {
    const Region& region = entry.value.region;
    places += entry.section + "." + entry.name + " " + std::to_string(region.line) + ":" +
              std::to_string(region.column) + "+" + std::to_string(region.length) + "\n";
  }
  EXPECT_EQ(places, ".top 1:6+1\na. 2:0+3\na.b 3:4+3\na.list 4:7+14\na.last 6:7+1\n");
  const Literal& list = entries.at(3).value;
  ASSERT_EQ(list.items.size(), 3U);
  EXPECT_EQ(list.items[1].region.line, 5U);
  EXPECT_EQ(list.items[1].region.column, 2U);
  EXPECT_EQ(list.items[1].integer, 22);
}

// Quadratic in the values this is a matter of a minute.
TEST(ParseToml, OfManyValuesTakesLinearTime) {
  std::string text = "[a]\nlist = [\n";
  for (int i = 0; i < 80'000; ++i) text += "1,\n";
  text += "]\n";
  const auto entries = parse_toml(Source::from_text("c.toml", text));
  EXPECT_EQ(entries.at(1).value.items.size(), 80'000U);
  EXPECT_EQ(entries.at(1).value.items.back().region.line, 80'002U);
}

}  // namespace
}  // namespace fsdp::config
