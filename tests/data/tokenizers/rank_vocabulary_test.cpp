#include "data/tokenizers/rank_vocabulary.h"

#include <nlohmann/json.hpp>

#include "data/token_fixtures.h"
#include "data/tokenizers/tokenizer.h"
#include "data/tokenizers/vocabulary_tokenizer.h"

namespace fsdp::data {
namespace {

using nlohmann::json;
using Ids = std::vector<int64_t>;

std::string base64_of(std::string_view bytes) {
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t bits = 0;
    for (size_t k = i; k < i + 3; ++k) {
      bits = bits << 8 | (k < bytes.size() ? static_cast<unsigned char>(bytes[k]) : 0);
    }
    for (size_t k = 0; k < 4; ++k) {
      out += i + k > bytes.size() ? '=' : kDigits[bits >> (18 - 6 * k) & 63];
    }
  }
  return out;
}

/// The bytes, and what can be merged of a, b and c: "bc" before "ab".
std::vector<std::string> small_ranks() {
  std::vector<std::string> tokens;
  for (int byte = 0; byte < 256; ++byte) tokens.emplace_back(1, static_cast<char>(byte));
  for (const char* token : {"bc", "ab", "abc", " a"}) tokens.emplace_back(token);
  return tokens;
}

std::string lines_of(const std::vector<std::string>& tokens) {
  std::string lines;
  for (size_t rank = 0; rank < tokens.size(); ++rank) {
    lines += concat(base64_of(tokens[rank]), " ", rank, "\n");
  }
  return lines;
}

json tekken() {
  json vocabulary = json::array();
  const std::vector<std::string> tokens = small_ranks();
  for (size_t rank = 0; rank < tokens.size(); ++rank) {
    vocabulary.push_back({{"rank", rank}, {"token_bytes", base64_of(tokens[rank])}, {"token_str", nullptr}});
  }
  // As in Mistral's files, the vocabulary has more tokens than are used.
  return {{"config",
           {{"pattern", "[^\\s]+|\\s+"},
            {"num_vocab_tokens", 260},
            {"default_vocab_size", 263},
            {"default_num_special_tokens", 4},
            {"version", "v3"}}},
          {"vocab", vocabulary}};
}

Ids ids_of(const Vocabulary& vocabulary, std::string_view text) {
  Ids ids;
  make_tokenizer(vocabulary)->encode(text, ids);
  return ids;
}

TEST(RankVocabulary, MergesTheTokenOfTheLowestRankFirst) {
  Vocabulary vocabulary = parse_tiktoken(lines_of(small_ranks()), "a.tiktoken");
  vocabulary.splits.push_back({.pattern = "[^\\s]+|\\s+"});
  EXPECT_EQ(ids_of(vocabulary, "abcd ab"), (Ids{258, 'd', ' ', 257}));
  EXPECT_EQ(ids_of(vocabulary, "abc"), Ids{258});  // a whole piece
  EXPECT_EQ(ids_of(vocabulary, "bcab"), (Ids{256, 257}));
}

TEST(RankVocabulary, OfTekkenHasItsSpecialTokensFirst) {
  const Vocabulary vocabulary = parse_tekken(tekken().dump(), "tekken.json");
  EXPECT_EQ(ids_of(vocabulary, "<s>ab[INST]"), (Ids{1, 4 + 257, 3}));
  EXPECT_EQ(ids_of(vocabulary, " a"), (Ids{4 + ' ', 4 + 'a'}));  // the last token is not used
  const auto tokenizer = make_tokenizer(vocabulary);
  EXPECT_EQ(tokenizer->vocab_size(), 263);
  EXPECT_EQ(tokenizer->begin_of_text(), Ids{1});
  EXPECT_EQ(tokenizer->end_of_text(), 2);

  json listed = tekken();
  listed["special_tokens"] = {{{"rank", 0}, {"token_str", "<pad>"}}, {{"rank", 1}, {"token_str", "</s>"}}};
  const Vocabulary other = parse_tekken(listed.dump(), "tekken.json");
  EXPECT_EQ(ids_of(other, "</s><SPECIAL_3><pad>"), (Ids{1, 3, 0}));
  EXPECT_EQ(make_tokenizer(other)->begin_of_text(), Ids{});
}

TEST(RankVocabulary, IsReadByItsNameOrContent) {
  fsdp::testing::TemporaryFolder folder;
  folder.write("tekken.json", tekken().dump());
  folder.write("added_tokens.json", R"({"[INST]": 3})");
  EXPECT_EQ(make_tokenizer(folder.path())->id_of("</s>"), 2);
  EXPECT_EQ(make_tokenizer(folder / "tekken.json")->vocab_size(), 263);
  for (const char* name : {"a.tiktoken", "tokenizer.model", "tokenizer.model.v9"}) {
    const std::string path = folder.write(name, lines_of(small_ranks()));
    expect_error(ErrorKind::kData, {path, "o200k_base", "tokenizer.json of the model"},
                 [&] { make_tokenizer(path); });
  }
}

TEST(RankVocabulary, DamagedIsRefused) {
  const auto refused = [](const json& file, const std::string& part) {
    expect_error(ErrorKind::kData, {"tekken.json", part}, [&] { parse_tekken(file.dump(), "tekken.json"); });
  };
  json file = tekken();
  file["vocab"][5]["rank"] = 6;
  refused(file, "the rank 6 in the place of 5");
  file = tekken();
  file["vocab"][5]["token_bytes"] = "?";
  refused(file, "rank 5");
  file["vocab"][5]["token_bytes"] = "AA==";
  refused(file, "twice");
  file = tekken();
  file["config"]["default_vocab_size"] = 5000;
  refused(file, "fewer tokens");
  file["config"]["default_vocab_size"] = 10;
  refused(file, "no token for the byte");
  file = tekken();
  file["special_tokens"] = {{{"rank", 9}, {"token_str", "<s>"}}};
  refused(file, "special token with the id 9");
  for (const char* lines : {"", "AA== 0\n", "AA==\n", "AA== x\n", "AA== 1\n", "AA== 0 0\n"}) {
    expect_error(ErrorKind::kData, {"a.tiktoken"}, [&] { parse_tiktoken(lines, "a.tiktoken"); });
  }
}

}  // namespace
}  // namespace fsdp::data
