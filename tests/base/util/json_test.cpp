#include "base/util/json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/util/error.h"

namespace fsdp::util {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

const char* const kAssorted[] = {
    "0",
    "-7",
    "18446744073709551615",
    "1e2",
    "-0.5",
    "123456789012345678901234567890",
    "true",
    "null",
    R"("a\"b\\c\n\u00e4\ud83d\ude00")",
    "[]",
    "{}",
    "[1,[2,{\"a\":[]}],\"x\"]",
    R"( { "b" : [ 1 , { "z" : 1.0 , "a" : null } ] , "a" : { "" : "" } , "\u00e4" : 3 , "A" : false } )"};

std::string refusal_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const JsonError& error) {
    return error.what();
  }
  return "nothing was refused";
}

/// {"0000000": [], ...}, or the reverse.
std::string object_of(int64_t members, bool rising) {
  std::string text = "{";
  for (int64_t i = 0; i < members; ++i) {
    const std::string number = std::to_string(10'000'000 + (rising ? i : members - i));
    text += concat(i == 0 ? "" : ",", "\"", number.substr(1), "\":[]");
  }
  return text + "}";
}

TEST(Json, IsReadAsNlohmannReadsIt) {
  for (const char* text : kAssorted) EXPECT_EQ(parse_json(text, {}), json::parse(text)) << text;
}

TEST(Json, IsGivenMemberByMember) {
  json members = json::object();
  std::string order;
  read_json_members(kAssorted[12], {}, [&](std::string&& key, json&& value) {
    order += key + ";";
    members[key] = std::move(value);
  });
  EXPECT_EQ(order, "b;a;\u00e4;A;");
  EXPECT_EQ(members, json::parse(kAssorted[12]));
  for (const char* text : {"[]", "1", "[{\"a\":1}]"}) {
    EXPECT_EQ(refusal_of([&] { read_json_members(text, {}, [](auto&&, auto&&) {}); }),
              "is not a JSON object");
  }
}

TEST(Json, HasTheCanonicalFormThatNlohmannWrites) {
  for (const char* text : kAssorted) {
    EXPECT_EQ(CanonicalJson(text, {}).text(), json::parse(text).dump()) << text;
  }
}

TEST(Json, MembersAreFoundInTheCanonicalForm) {
  const CanonicalJson canonical(R"({"c": {"y": 1, "x": [2]}, "a": "t", "b": 1.50})", {});
  EXPECT_EQ(canonical.member("c"), R"({"x":[2],"y":1})");
  EXPECT_EQ(canonical.member("a"), R"("t")");
  EXPECT_EQ(canonical.member("b"), "1.5");
  EXPECT_EQ(canonical.member("x"), std::nullopt);
  EXPECT_EQ(canonical.without("a"), R"({"b":1.5,"c":{"x":[2],"y":1}})");
  EXPECT_EQ(canonical.without("b"), R"({"a":"t","c":{"x":[2],"y":1}})");
  EXPECT_EQ(canonical.without("c"), R"({"a":"t","b":1.5})");
  EXPECT_EQ(canonical.without("d"), canonical.text());
  EXPECT_EQ(CanonicalJson(R"({"a":1})", {}).without("a"), "{}");
  EXPECT_EQ(CanonicalJson("[1]", {}).member("a"), std::nullopt);
}

TEST(Json, KeysThatAreGivenTwiceAreRefusedAtEveryLevel) {
  for (const char* text : {R"({"a":1,"a":1})", R"([{"b":{"a":1,"c":2,"a":3}}])", R"({"x":{"a":{},"a":{}}})",
                           R"({"x":[{"c":1,"b":2,"a":3,"b":4,"a":5}]})"}) {
    EXPECT_THAT(refusal_of([&] { parse_json(text, {}); }), HasSubstr("twice")) << text;
    EXPECT_THAT(refusal_of([&] { CanonicalJson(text, {}); }), HasSubstr("twice")) << text;
    if (*text != '{') continue;
    EXPECT_THAT(refusal_of([&] { read_json_members(text, {}, [](auto&&, auto&&) {}); }), HasSubstr("twice"));
  }
  EXPECT_EQ(refusal_of([&] { parse_json("{\"a\\u001b\":1,\"a\\u001b\":2}", {}); }),
            R"(gives "a\u001b" twice in one object)");
  EXPECT_EQ(parse_json(R"({"a":1,"a":2})", {.unique_keys = false}), json::parse(R"({"a":2})"));
}

TEST(Json, LimitsHold) {
  const JsonLimits three{.deepest_level = 3, .most_values = 4};
  EXPECT_EQ(parse_json("[[[1]]]", three).dump(), "[[[1]]]");
  for (const char* text : {"[[[[]]]]", "[[[{}]]]", R"({"a":{"b":{"c":{}}}})"}) {
    EXPECT_THAT(refusal_of([&] { parse_json(text, three); }), HasSubstr("nests deeper than 3 levels"));
    EXPECT_THAT(refusal_of([&] { CanonicalJson(text, three); }), HasSubstr("nests deeper than 3 levels"));
  }
  EXPECT_THAT(refusal_of([&] { parse_json("[1,2,3,4]", three); }), HasSubstr("more than 4 values"));
  int given = 0;
  read_json_members(R"({"a":[1,2,3],"b":[1,2,3],"c":1})", three, [&](auto&&, auto&&) { ++given; });
  EXPECT_EQ(given, 3) << "the limit holds for each member apart";
}

TEST(Json, WhatIsNoneIsRefused) {
  for (const char* text : {"", "{", "{\"a\":", "[1,]", "nonsense", "1 2", "\"\xff\"", "1e999", "[\"\n\"]"}) {
    EXPECT_THAT(refusal_of([&] { parse_json(text, {}); }), HasSubstr("is not valid JSON: ")) << text;
    EXPECT_THAT(refusal_of([&] { CanonicalJson(text, {}); }), HasSubstr("is not valid JSON: ")) << text;
  }
}

// A parser that walks through an object again at the end of each of its members does so 10^11 times here.
TEST(Json, OfManyMembersIsReadInLinearTime) {
  const int64_t members = 500'000;
  const std::string text = object_of(members, true);
  EXPECT_EQ(parse_json(text, {}).size(), static_cast<size_t>(members));
  int64_t given = 0;
  read_json_members(text, {}, [&](auto&&, auto&&) { ++given; });
  EXPECT_EQ(given, members);
}

TEST(Json, SortedKeysAreComparedOnceEachAndOthersAsOftenAsSortingNeeds) {
  for (const int64_t members : {1'000, 32'000}) {
    EXPECT_EQ(CanonicalJson(object_of(members, true), {}).comparisons(), members - 1);
    const CanonicalJson falling(object_of(members, false), {});
    EXPECT_EQ(falling.text().substr(0, 14), "{\"0000001\":[],");
    EXPECT_LT(falling.comparisons(), 40 * members);
  }
}

}  // namespace
}  // namespace fsdp::util
