#include "setup/translate/yaml.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "support/run_program.h"
#include "support/temporary_folder.h"

namespace fsdp::config {
namespace {

nlohmann::json json_of(const Literal& literal) {
  switch (literal.kind) {
    case Literal::Kind::kNull:
      return nullptr;
    case Literal::Kind::kBool:
      return literal.boolean;
    case Literal::Kind::kInteger:
      return literal.integer;
    case Literal::Kind::kFloat:
      return std::isfinite(literal.number) ? nlohmann::json(literal.number) : nlohmann::json("not finite");
    case Literal::Kind::kList: {
      nlohmann::json list = nlohmann::json::array();
      for (const Literal& item : literal.items) list.push_back(json_of(item));
      return list;
    }
    case Literal::Kind::kTable: {
      nlohmann::json table = nlohmann::json::object();
      for (const Literal::Field& field : literal.fields) table[field.name] = json_of(field.value);
      return table;
    }
    default:
      return literal.text;
  }
}

nlohmann::json read(const std::string& text) { return json_of(parse_yaml(Source::from_text("a.yml", text))); }

/// The message and the line of the refusal; empty if the text is read.
std::string refusal(const std::string& text) {
  try {
    read(text);
  } catch (const SyntaxError& error) {
    return (error.region ? std::to_string(error.region->line) : "?") + ": " + error.message;
  }
  return "";
}

constexpr const char* kReadable[] = {
    "a: 1\nb: 1e-4\nc: 1.0e-4\nd: 2e+5\ne: 1_000\nf: 0x1F\ng: 017\nh: 0b11\ni: .5\nj: -1.5\nk: 08\nl: 5.\n",
    "a: yes\nb: No\nc: on\nd: OFF\ne: y\nf: ~\ng:\nh: null\ni: 'no'\nj: True\nk: nUll\nl: .inf\nm: .NaN\nn: -.INF\n",
    "a: \"x # y\\t\\u00e9\\x41\\\\\"  # text\nb: 'it''s: #1'\nc: a#b\nd: http://x/y:z  # c\n\"e f\": 1\n'g': 2\n",
    "list:\n- a\n- b: 1\n  c: 2\n-\n  - d\n  - - e\n    - f\n- \n- {k: v, l: [1, two, 'x, y']}\nafter: []\n",
    "list:\n  - path: x\n    type: y\n\n    # between\n    split: train[:20%]\nmap:\n    deep:\n        deeper: {}\n    b: [a, b,]\n",
    "t: |\n  one\n    two # no comment\n\n  three\n\nf: >-\n  one\n  two\n\n  three\n    more\n  last\nk: |+\n  x\n\ne: 1\n",
    "---\na: <|end_of_text|>\nb: \"<|x|>\"\nc: -x\nd: a, b\ne: x [y] {z}\nf: '#'\n",
    "a: 2026-11-28x\nb: 1.2.3\nc: 12e03\nd: 1e3.5\ne: +1\nf: -0\ng: ._\nh: 1:x\n",
    "",
    "# only a comment\n",
};

TEST(Yaml, IsReadAsPyYamlReadsIt) {
  const char* chosen = std::getenv("FSDP_TEST_PYTHON");
  const std::string python = chosen == nullptr ? "python3" : chosen;
  if (testing::run({"/usr/bin/env", python, "-c", "import yaml"}).exit_code != 0) {
    GTEST_SKIP() << "set FSDP_TEST_PYTHON to a Python that has PyYAML";
  }
  std::vector<std::string> texts(std::begin(kReadable), std::end(kReadable));
  // Files of other people, with spaces between their paths.
  std::istringstream files(std::getenv("FSDP_TEST_YAML") == nullptr ? "" : std::getenv("FSDP_TEST_YAML"));
  for (std::string path; files >> path;) {
    std::ifstream file(path);
    texts.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  const testing::TemporaryFolder folder;
  const std::string list = (folder.path() / "texts.json").string();
  std::ofstream(list) << nlohmann::json(texts);
  const auto result = testing::run(
      {"/usr/bin/env", python, "-c",
       "import json, math, sys, yaml\n"
       "def plain(v):\n"
       "    if isinstance(v, dict): return {str(k): plain(x) for k, x in v.items()}\n"
       "    if isinstance(v, list): return [plain(x) for x in v]\n"
       "    return 'not finite' if isinstance(v, float) and not math.isfinite(v) else v\n"
       "print(json.dumps([plain(yaml.safe_load(t) or {}) for t in json.load(open(sys.argv[1]))]))",
       list});
  ASSERT_EQ(result.exit_code, 0) << result.out;
  const nlohmann::json theirs = nlohmann::json::parse(result.out);
  ASSERT_EQ(theirs.size(), texts.size());
  int refused = 0;
  for (size_t i = 0; i < texts.size(); ++i) {
    const std::string why = refusal(texts[i]);
    if (i < std::size(kReadable)) {
      EXPECT_EQ(why, "") << texts[i];
    }
    if (!why.empty()) std::cout << "refused, line " << why << "\n";
    refused += !why.empty();
    if (why.empty()) {
      EXPECT_EQ(read(texts[i]), theirs[i]) << texts[i];
    }
  }
  std::cout << texts.size() << " texts, " << refused << " refused\n";
}

TEST(Yaml, ResolvesScalarsByVersion11) {
  EXPECT_EQ(
      read("a: yes\nb: 1e-4\nc: 1.0e-4\nd: off\ne: '1'\nf:\n"),
      nlohmann::json({{"a", true}, {"b", "1e-4"}, {"c", 1e-4}, {"d", false}, {"e", "1"}, {"f", nullptr}}));
  EXPECT_EQ(read("a:\n- b: 1\n  c: [x, {y: z}]\n- |\n  one\n  two\n"),
            nlohmann::json({{"a", {{{"b", 1}, {"c", {"x", {{"y", "z"}}}}}, "one\ntwo\n"}}}));
}

TEST(Yaml, RefusesByLineWhatItDoesNotRead) {
  EXPECT_TRUE(
      refusal("a: 1\nb: &x 2\n").starts_with("2: not read here: a value that begins with &, an anchor"));
  EXPECT_TRUE(refusal("a: *x\n").starts_with("1: not read here: a value that begins with *, an anchor"));
  EXPECT_TRUE(refusal("a: !!str 1\n").starts_with("1: not read here: a value that begins with !, a tag"));
  EXPECT_TRUE(refusal("<<: *x\n").starts_with("1: not read here: a key with an anchor"));
  EXPECT_TRUE(refusal("a: 1\na: 2\n").starts_with("2: a key must appear only once, but a is already above"));
  EXPECT_TRUE(refusal("a: [1,\n  2]\n").starts_with("1: expected , or ] on the same line"));
  EXPECT_TRUE(refusal("a: 1\n---\nb: 2\n").starts_with("2: expected"));
  EXPECT_TRUE(refusal("a:\n\tb: 1\n").starts_with("2: YAML is indented with spaces"));
  EXPECT_TRUE(refusal("a: one\n  two\n").starts_with("2: a value must end on its line"));
  EXPECT_TRUE(refusal("a: b: c\n").starts_with("1: expected one key on a line"));
  EXPECT_TRUE(
      refusal("a: 12:30\n").starts_with("1: not read here: YAML 1.1 takes this for a number of base 60"));
  EXPECT_TRUE(refusal("- a\n").starts_with("1: expected keys with values"));
  EXPECT_TRUE(refusal("a: \xff\n").starts_with("1: not valid YAML"));
  std::string deep;
  for (int level = 0; level < 40; ++level) deep += std::string(level, ' ') + "a:\n";
  EXPECT_NE(refusal(deep).find("expected at most 32 levels"), std::string::npos);
  EXPECT_NE(refusal("a: " + std::string(100'000, '[')).find("expected at most 32 levels"), std::string::npos);
  EXPECT_NE(refusal(std::string(50'000, '-') + "\n- - - " + std::string(10, '-')), "");
}

}  // namespace
}  // namespace fsdp::config
