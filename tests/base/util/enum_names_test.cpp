#include "base/util/enum_names.h"

#include <gtest/gtest.h>

namespace fsdp::util::colours {

enum class Colour { kRed, kDarkBlue, kUnlisted };

constexpr auto enum_names(Colour) {
  return std::to_array<EnumName<Colour>>({{Colour::kDarkBlue, "dark_blue"}, {Colour::kRed, "red"}});
}

enum class Nameless { kOne };

}  // namespace fsdp::util::colours

namespace fsdp::util {
namespace {

using colours::Colour;

static_assert(NamedEnum<Colour>);
static_assert(!NamedEnum<colours::Nameless> && !NamedEnum<int>);

TEST(EnumNames, NamesAreThoseOfTheTableBothWays) {
  EXPECT_EQ(name_of(Colour::kDarkBlue), "dark_blue");
  EXPECT_EQ(parse_enum<Colour>("dark_blue"), Colour::kDarkBlue);
  EXPECT_EQ(parse_enum<Colour>("red"), Colour::kRed);
  EXPECT_EQ(names_of_enum<Colour>(), (std::vector<std::string>{"dark_blue", "red"}));
}

TEST(EnumNames, NamesOutsideTheTableAreUnknown) {
  EXPECT_EQ(parse_enum<Colour>("Red"), std::nullopt);
  EXPECT_EQ(parse_enum<Colour>(""), std::nullopt);
  EXPECT_THROW(name_of(Colour::kUnlisted), Error);
}

TEST(Named, TakesTheValueOrItsName) {
  Named<Colour> option = Colour::kRed;
  EXPECT_EQ(option.name(), "red");
  option = "dark_blue";
  EXPECT_EQ(option, Colour::kDarkBlue);
  EXPECT_EQ(option.value(), Colour::kDarkBlue);
  EXPECT_EQ(option, "dark_blue");
  EXPECT_EQ(concat(option), "dark_blue");
}

TEST(Named, RefusesAnUnknownNameAndKeepsItsValue) {
  Named<Colour> option = Colour::kRed;
  try {
    option = std::string("green");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    EXPECT_STREQ(error.what(), "expected one of dark_blue, red; found \"green\"; set it to one of these");
  }
  EXPECT_EQ(option, Colour::kRed);
}

}  // namespace
}  // namespace fsdp::util
