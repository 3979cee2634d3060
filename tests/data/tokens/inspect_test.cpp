#include "data/tokens/inspect.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "data/token_fixtures.h"

namespace fsdp::data {
namespace {
using fsdp::testing::TemporaryFolder;

TEST(Inspect, CountsTokensOverAllFiles) {
  TemporaryFolder folder;
  InspectOptions options;
  options.files = {write_tokens(folder, "a", {65, 65, 65, 65}), write_tokens(folder, "b", {66, 66, 10, 97})};
  options.sequence_length = 3;
  TokenStatistics statistics = inspect(options);
  EXPECT_EQ(statistics.tokens, 8);
  EXPECT_EQ(statistics.files[1].tokens, 4);
  EXPECT_EQ(statistics.largest_id, 97);
  EXPECT_EQ(statistics.distinct_ids, 4);
  // Shares 1/2, 1/4, 1/8, 1/8.
  EXPECT_NEAR(statistics.unigram_entropy_nats.value(), 1.75 * std::log(2), 1e-12);
  EXPECT_EQ(statistics.samples, 2);
  EXPECT_EQ(statistics.beginning, "AAAABB\\na");
  EXPECT_EQ(statistics.ids_outside_vocabulary, 0);
}

TEST(Inspect, ASingleIdHasNoEntropy) {
  TemporaryFolder folder;
  InspectOptions options;
  options.files = {write_tokens(folder, "a", {5, 5, 5})};
  TokenStatistics statistics = inspect(options);
  EXPECT_EQ(statistics.unigram_entropy_nats, 0);
  EXPECT_FALSE(std::signbit(statistics.unigram_entropy_nats.value()));
  EXPECT_EQ(statistics.samples, 0);
}

TEST(Inspect, CountsIdsOutsideTheVocabulary) {
  TemporaryFolder folder;
  InspectOptions options;
  options.files = {write_tokens(folder, "a", {1, 2, 3, 3, 300})};
  options.vocab_size = 3;
  TokenStatistics statistics = inspect(options);
  EXPECT_EQ(statistics.ids_outside_vocabulary, 3);
  EXPECT_EQ(statistics.beginning, std::nullopt);
}

TEST(Inspect, GivesTheSameFiguresAsTextAndAsJson) {
  TemporaryFolder folder;
  InspectOptions options;
  options.files = {write_tokens(folder, "a\xff", counting(2000))};
  TokenStatistics statistics = inspect(options);
  std::string text = to_text(statistics);
  EXPECT_NE(text.find("tokens            2,000\n"), std::string::npos) << text;
  EXPECT_NE(text.find("7.6009 nats"), std::string::npos) << text;
  EXPECT_NE(text.find("7 of 256 tokens"), std::string::npos) << text;
  auto json = nlohmann::json::parse(to_json(statistics));
  EXPECT_EQ(json["tokens"], 2000);
  EXPECT_EQ(json["largest_id"], 1999);
  EXPECT_EQ(json["samples"], 7);
  EXPECT_EQ(json["files"][0]["tokens"], 2000);
  EXPECT_NEAR(json["unigram_entropy_nats"].get<double>(), std::log(2000), 1e-9);
  EXPECT_FALSE(json.contains("beginning"));
}

TEST(Escaped, LeavesNothingThatATerminalObeys) {
  EXPECT_EQ(escaped(std::string("a\n\t\r\"\\\x00\x1b\x7f\xc3~ ", 12)),
            "a\\n\\t\\r\\\"\\\\\\x00\\x1b\\x7f\\xc3~ ");
}

TEST(Inspect, RefusesOptionsWithoutMeaning) {
  expect_error(ErrorKind::kUsage, {"no token file"}, [] { inspect({}); });
  InspectOptions options;
  options.files = {"x"};
  options.sequence_length = 0;
  expect_error(ErrorKind::kUsage, {"sequence length (0)"}, [&] { inspect(options); });
}

}  // namespace
}  // namespace fsdp::data
