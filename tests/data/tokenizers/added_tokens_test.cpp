#include "data/tokenizers/added_tokens.h"

#include <nlohmann/json.hpp>

#include "data/token_fixtures.h"
#include "data/tokenizers/piece_model.h"
#include "data/tokenizers/vocabulary_tokenizer.h"

namespace fsdp::data {
namespace {

using Found = std::vector<std::pair<size_t, int64_t>>;

/// Begin and id of all tokens in a text.
Found found_in(const AddedTokens& tokens, std::string_view text) {
  AddedTokens::Search search(tokens, text);
  Found found;
  for (size_t from = 0;;) {
    const AddedTokens::Match match = search.next(from);
    if (match.id < 0) return found;
    found.emplace_back(match.begin, match.id);
    from = match.end;
  }
}

TEST(AddedTokens, TheLongestOfThoseAtAPlaceIsFound) {
  const AddedTokens tokens({{"<a>", 1}, {"<a><b>", 2}, {"<", 3}, {"<a>", 4}, {"\xff", 5}});
  EXPECT_EQ(found_in(tokens, "x<a><b><a><c>\xff<"), (Found{{1, 2}, {7, 1}, {10, 3}, {13, 5}, {14, 3}}));
  EXPECT_EQ(found_in(tokens, ""), Found{});
  EXPECT_EQ(found_in(AddedTokens({}), "<a>"), Found{});
}

TEST(AddedTokens, ThoseThatAreNotNormalizedComeBeforeTheOthers) {
  const AddedTokens tokens({{"ab", 1, true}, {"bc", 2, false}, {"a", 3, true}});
  EXPECT_EQ(found_in(tokens, "abcab"), (Found{{0, 3}, {1, 2}, {3, 1}}));
}

/// Begin, end and id of all tokens in a text.
std::vector<std::array<int64_t, 3>> spans_in(const AddedTokens& tokens, std::string_view text) {
  AddedTokens::Search search(tokens, text);
  std::vector<std::array<int64_t, 3>> spans;
  for (size_t from = 0;;) {
    const AddedTokens::Match match = search.next(from);
    if (match.id < 0) return spans;
    spans.push_back({static_cast<int64_t>(match.begin), static_cast<int64_t>(match.end), match.id});
    from = match.end;
  }
}

TEST(AddedTokens, TakeTheWhiteSpaceAlongThatTheirOptionsName) {
  const AddedTokens tokens({{.content = "<l>", .id = 1, .lstrip = true},
                            {.content = "<r>", .id = 2, .rstrip = true},
                            {.content = "<b>", .id = 3, .lstrip = true, .rstrip = true},
                            {.content = "\n", .id = 4}});
  using Spans = std::vector<std::array<int64_t, 3>>;
  EXPECT_EQ(spans_in(tokens, "a \t<l> b"), (Spans{{1, 6, 1}}));
  EXPECT_EQ(spans_in(tokens, " <r>\u3000 b"), (Spans{{1, 8, 2}}));
  EXPECT_EQ(spans_in(tokens, "<r>  <b>  <l> "), (Spans{{0, 5, 2}, {5, 10, 3}, {10, 13, 1}}));
  // A byte of a character of white space is none.
  EXPECT_EQ(spans_in(tokens, "\x85<l>"), (Spans{{1, 4, 1}}));
  EXPECT_EQ(spans_in(tokens, "<r>\xa0"), (Spans{{0, 3, 2}}));
  // As in tokenizers, white space that a token took along may be a token too.
  EXPECT_EQ(spans_in(tokens, "<r> \nx"), (Spans{{0, 5, 2}, {5, 5, 4}}));
}

// One look at each of the tokens for each place of the text would be 10^11 looks.
TEST(AddedTokens, HundredsOfThousandsAreReadAndFoundInLinearTime) {
  const int64_t count = 200'000;
  nlohmann::json vocabulary, added = nlohmann::json::array();
  for (int byte = 0; byte < 256; ++byte) vocabulary[byte_symbol(static_cast<unsigned char>(byte))] = byte;
  for (int64_t i = 0; i < count; ++i) {
    added.push_back({{"id", 256 + i}, {"content", concat("<", i, ">")}, {"special", true}});
  }
  const nlohmann::json file{
      {"model", {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", nlohmann::json::array()}}},
      {"added_tokens", added},
      {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}}}};
  const auto tokenizer = make_tokenizer(parse_tokenizer_json(file.dump(), "tokenizer.json"));
  std::string text;
  for (int64_t i = 0; i < count; ++i) text += concat("<", i, "> < ");
  std::vector<int64_t> ids;
  tokenizer->encode(text, ids);
  EXPECT_EQ(std::count_if(ids.begin(), ids.end(), [](int64_t id) { return id >= 256; }), count);
}

}  // namespace
}  // namespace fsdp::data
