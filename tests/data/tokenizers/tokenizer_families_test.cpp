// The tokenizers of model families, against ids and texts that PyPI's tokenizers made for texts full of
// Unicode's corner cases (tests/data/bpe/make_families.py): GPT-2, Llama 2 and 3, Mistral, Qwen2 and T5.

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/util/file.h"
#include "data/token_fixtures.h"
#include "data/tokenizers/tokenizer.h"
#include "data/tokenizers/utf8.h"
#include "support/source_folder.h"

namespace fsdp::data {
namespace {

using Ids = std::vector<int64_t>;

const std::string kFamilies = testing::source_folder() + "/tests/data/bpe/families/";

const nlohmann::json& family_vectors() {
  static const auto parsed = nlohmann::json::parse(util::read_file(kFamilies + "vectors.json"));
  return parsed;
}

std::vector<std::string> families() {
  std::vector<std::string> names;
  for (const auto& [name, ids] : family_vectors()["ids"].items()) names.push_back(name);
  return names;
}

Ids ids_by_family(const Tokenizer& tokenizer, std::string_view text) {
  Ids ids;
  tokenizer.encode(text, ids);
  return ids;
}

/// Replaces bytes that are not UTF-8 as tokenizers does: the beginning of a character by one U+FFFD, and each
/// other byte.
std::string with_replacement_characters(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const size_t valid = valid_utf8_prefix(text);
    out += text.substr(0, valid);
    text.remove_prefix(valid);
    if (text.empty()) break;
    out += "\xef\xbf\xbd";
    size_t bytes = 1;
    for (const size_t more : {2, 3}) {
      if (more <= text.size() && incomplete_utf8_tail(text.substr(0, more)) == more) bytes = more;
    }
    text.remove_prefix(bytes);
  }
  return out;
}

class TokenizerFamilies : public ::testing::TestWithParam<std::string> {
 protected:
  Ids expected(size_t i) const { return family_vectors()["ids"][GetParam()][i].get<Ids>(); }
  const std::vector<std::string> texts = family_vectors()["texts"].get<std::vector<std::string>>();
  const std::unique_ptr<Tokenizer> tokenizer = make_tokenizer(kFamilies + GetParam() + ".json");
};

TEST_P(TokenizerFamilies, GiveTheIdsOfTokenizers) {
  for (size_t i = 0; i < texts.size(); ++i) {
    EXPECT_EQ(ids_by_family(*tokenizer, texts[i]), expected(i)) << "text " << i << ": \"" << texts[i] << "\"";
  }
}

TEST_P(TokenizerFamilies, GiveTheTextOfTokenizersBack) {
  for (size_t i = 0; i < texts.size(); ++i) {
    EXPECT_EQ(with_replacement_characters(tokenizer->decode(expected(i))),
              family_vectors()["decoded"][GetParam()][i].get<std::string>())
        << "text " << i << ": \"" << texts[i] << "\"";
  }
}

/// In whatever pieces a text is encoded, its ids are those of the whole.
TEST_P(TokenizerFamilies, GiveTheSameIdsForATextInPieces) {
  std::string all;
  for (const std::string& text : texts) all += text;
  const Ids whole = ids_by_family(*tokenizer, all);
  for (const size_t piece_bytes : {1, 7, 64, 1000}) {
    Ids ids;
    std::string buffer;
    for (size_t i = 0; i < all.size(); i += piece_bytes) {
      buffer += all.substr(i, piece_bytes);
      buffer.erase(0, tokenizer->encode_some(buffer, buffer.size(), ids));
    }
    tokenizer->encode(buffer, ids);
    EXPECT_EQ(ids, whole) << piece_bytes;
  }
}

TEST_P(TokenizerFamilies, SplitTheNamesOfSpecialTokensWhereThatIsAskedFor) {
  const auto splitting = make_tokenizer(kFamilies + GetParam() + ".json", {.split_special_tokens = true});
  const nlohmann::json file = nlohmann::json::parse(util::read_file(kFamilies + GetParam() + ".json"));
  for (const auto& token : file["added_tokens"]) {
    const Ids ids = ids_by_family(*splitting, "the" + token["content"].get<std::string>() + "the");
    const bool found = std::count(ids.begin(), ids.end(), token["id"].get<int64_t>()) > 0;
    if (token["content"] == "<unk>") continue;  // it may stand for characters of its own name
    EXPECT_EQ(found, !token["special"].get<bool>()) << token["content"];
  }
}

INSTANTIATE_TEST_SUITE_P(, TokenizerFamilies, ::testing::ValuesIn(families()),
                         [](const auto& test) { return test.param; });

/// Qwen2's two files, which without the class would be read as GPT-2's.
TEST(TwoFiles, AreSplitAndNormalizedAsTheirTokenizerClassDoes) {
  const auto tokenizer = make_tokenizer(kFamilies + "qwen2_files");
  for (size_t i = 0; i < family_vectors()["texts"].size(); ++i) {
    EXPECT_EQ(ids_by_family(*tokenizer, family_vectors()["texts"][i].get<std::string>()),
              family_vectors()["ids"]["qwen2"][i].get<Ids>())
        << "text " << i;
  }
  EXPECT_EQ(tokenizer->end_of_text(), tokenizer->id_of("<|im_end|>"));
}

class TwoFilesOfAKind : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : {"vocab.json", "merges.txt"}) {
      std::filesystem::copy(kFamilies + "qwen2_files/" + name, folder_ / name);
    }
  }
  /// Adds a file beside the two.
  std::unique_ptr<Tokenizer> with(const char* name, const nlohmann::json& content) {
    util::write_file_atomically(folder_ / name, content.dump());
    return make_tokenizer(folder_.path().string());
  }
  fsdp::testing::TemporaryFolder folder_;
};

TEST_F(TwoFilesOfAKind, FollowTheModelTypeOfConfigJson) {
  const auto plain = make_tokenizer(folder_.path().string());
  EXPECT_NE(ids_by_family(*with("config.json", {{"model_type", "qwen2"}}), "e\u0301"),
            ids_by_family(*plain, "e\u0301"));
}

TEST_F(TwoFilesOfAKind, AreRefusedForAnotherClassByName) {
  expect_error(ErrorKind::kData, {"tokenizer_config.json", "RobertaTokenizer", "tokenizer.json"}, [&] {
    with("tokenizer_config.json", {{"tokenizer_class", "RobertaTokenizer"}});
  });
}

}  // namespace
}  // namespace fsdp::data
