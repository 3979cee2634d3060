#include "data/chat/chat_python.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <stdexcept>

#include "base/util/file.h"
#include "data/chat/chat_jinja.h"
#include "data/chat_fixtures.h"

namespace fsdp::data {
namespace {

TEST(ChatPython, TemplatesPrintValuesAsPythonDoes) {
  const OrderedJson values = OrderedJson::parse(util::read_file(kChatFolder + "values.json"));
  ASSERT_GT(values.size(), 400u);
  for (const OrderedJson& value : values) {
    const auto source = value[0].get<std::string>(), variables = value[1].get<std::string>();
    const std::string text = JinjaTemplate(source).render(parse_chat_json(variables)).text;
    EXPECT_EQ(text, value[2].get<std::string>()) << source << " of " << variables;
  }
}

TEST(ChatPython, FloatsHaveTheShortestDigits) {
  EXPECT_EQ(python_float(1e16), "1e+16");
  EXPECT_EQ(python_float(-0.0001), "-0.0001");
  EXPECT_EQ(python_float(std::numeric_limits<double>::infinity()), "inf");
  EXPECT_EQ(json_float(-std::numeric_limits<double>::infinity()), "-Infinity");
  EXPECT_EQ(json_float(std::nan("")), "NaN");
}

TEST(ChatPython, WhiteSpaceIsThatOfStr) {
  for (const uint32_t space : {0x9u, 0x1cu, 0x1fu, 0x20u, 0x85u, 0xa0u, 0x1680u, 0x2028u, 0x3000u})
    EXPECT_TRUE(python_is_space(space)) << space;
  for (const uint32_t other : {0x0u, 0x1bu, 0x200bu, 0x180eu, 0xfeffu})
    EXPECT_FALSE(python_is_space(other)) << other;
  EXPECT_EQ(python_split(" a b ", 1, /*from_left=*/true), (std::vector<std::string_view>{"a", "b "}));
  EXPECT_EQ(python_split(" a b ", 1, /*from_left=*/false), (std::vector<std::string_view>{" a", "b"}));
}

TEST(ChatPython, TextsBecomeNumbersAsInPython) {
  EXPECT_EQ(python_int_of(" -1_0 ", 10), -10);
  EXPECT_EQ(python_int_of("0x1f", 16), 31);
  EXPECT_EQ(python_int_of("1.9e1", 10), 19);
  EXPECT_EQ(python_int_of("1__0", 10), std::nullopt);
  EXPECT_THROW(python_int_of("9223372036854775808", 10), std::runtime_error);
  EXPECT_EQ(python_float_of("+1.5"), 1.5);
  EXPECT_EQ(python_float_of("+-1"), std::nullopt);
  EXPECT_EQ(python_float_of("1e999"), std::numeric_limits<double>::infinity());
}

TEST(ChatPython, RefusesWhatPythonRefuses) {
  for (const char* source : {"{{ 'a' + none }}", "{{ 'a' + 1 }}", "{{ 'a' + missing }}", "{{ 1 % 0 }}",
                             "{{ 1 / 0 }}", "{{ 9223372036854775807 + 1 }}", "{{ raise_exception }}"}) {
    EXPECT_THROW(JinjaTemplate(source).render(OrderedJson::object()), TemplateError) << source;
  }
  EXPECT_THROW(JinjaTemplate("{{ x + 1 }}").render(parse_chat_json(R"({"x": 12345678901234567890})")),
               TemplateError);
}

TEST(ChatJson, KeepsTheOrderAndIntegersOfAnySize) {
  const OrderedJson json =
      parse_chat_json(R"({"b": [1, 18446744073709551616], "a": -9223372036854775809, "b": 2e0})");
  EXPECT_EQ(json.begin().key(), "b");
  EXPECT_EQ(json["b"], 2.0);
  EXPECT_EQ(large_integer(json["a"]), "-9223372036854775809");
  EXPECT_EQ(large_integer(OrderedJson(5)), std::nullopt);
  EXPECT_EQ(parse_chat_json("[[], {}, [null, true, \"x\"]]").dump(), R"([[],{},[null,true,"x"]])");
}

}  // namespace
}  // namespace fsdp::data
