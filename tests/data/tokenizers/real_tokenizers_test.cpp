// Real tokenizers, against the ids of tokenizers, sentencepiece, tiktoken and mistral-common for a megabyte
// of mixed text (tests/data/real_tokenizers/make.py). Runs where FSDP_TEST_TOKENIZERS names the folder that
// the script made.

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/util/file.h"
#include "data/tokenizers/tokenizer.h"

namespace fsdp::data {
namespace {

namespace fs = std::filesystem;
using Ids = std::vector<int64_t>;

fs::path folder_of_real_tokenizers() {
  const char* folder = std::getenv("FSDP_TEST_TOKENIZERS");
  return folder == nullptr ? fs::path() : fs::path(folder);
}

std::vector<std::string> real_tokenizers() {
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder_of_real_tokenizers(), error)) {
    if (fs::exists(entry.path() / "ids.bin")) names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

/// The folder, or the file in it that its name does not tell.
std::string name_of(const fs::path& folder) {
  for (const auto& file : fs::directory_iterator(folder)) {
    if (file.path().extension() == ".tiktoken") return file.path().string();
  }
  return folder.string();
}

Ids ids_of(const Tokenizer& tokenizer, std::string_view text) {
  Ids ids;
  tokenizer.encode(text, ids);
  return ids;
}

class RealTokenizers : public ::testing::TestWithParam<std::string> {
 protected:
  const fs::path folder_ = folder_of_real_tokenizers() / GetParam();
  const std::unique_ptr<Tokenizer> tokenizer_ = make_tokenizer(name_of(folder_));
};

TEST_P(RealTokenizers, GiveTheIdsOfTheirLibraries) {
  const auto texts = nlohmann::json::parse(util::read_file(folder_of_real_tokenizers() / "texts.json"))
                         .get<std::vector<std::string>>();
  const std::string file = util::read_file(folder_ / "ids.bin");
  const char* at = file.data();
  const auto next = [&at] {
    uint32_t value = 0;
    std::memcpy(&value, at, sizeof(value));
    at += sizeof(value);
    return value;
  };
  int64_t different = 0, tokens = 0;
  for (size_t i = 0; i < texts.size(); ++i) {
    const auto left = static_cast<size_t>(file.data() + file.size() - at) / sizeof(uint32_t);
    ASSERT_GT(left, 0U);
    Ids expected(next());
    ASSERT_LT(expected.size(), left) << "ids.bin is not of texts.json; make both again";
    for (int64_t& id : expected) id = next();
    const Ids ids = ids_of(*tokenizer_, texts[i]);
    tokens += static_cast<int64_t>(ids.size());
    if (ids == expected) continue;
    if (++different > 3) continue;
    const auto [mine, theirs] = std::mismatch(ids.begin(), ids.end(), expected.begin(), expected.end());
    const auto begin = ids.begin(), end = ids.end();
    std::string around = tokenizer_->decode(Ids(mine - std::min<int64_t>(mine - begin, 6), mine)) + "<HERE>";
    around += tokenizer_->decode(Ids(mine, mine + std::min<int64_t>(end - mine, 6)));
    ADD_FAILURE() << "text " << i << " differs at token " << mine - begin << ": "
                  << (mine == end ? -1 : *mine) << " in the place of "
                  << (theirs == expected.end() ? -1 : *theirs) << " in " << around;
  }
  EXPECT_EQ(at, file.data() + file.size());
  EXPECT_EQ(different, 0) << "of " << texts.size() << " texts";
  RecordProperty("tokens", std::to_string(tokens));
}

TEST_P(RealTokenizers, GiveTheIdsThatTheirPublishersGave) {
  if (!fs::exists(folder_ / "inputs.json")) GTEST_SKIP() << "no published ids";
  for (const auto& [text, expected] : nlohmann::json::parse(util::read_file(folder_ / "inputs.json"))
                                          .get<std::vector<std::pair<std::string, Ids>>>()) {
    EXPECT_EQ(ids_of(*tokenizer_, text), expected) << text;
  }
}

TEST_P(RealTokenizers, GiveTheSameIdsForATextInPieces) {
  const auto texts = nlohmann::json::parse(util::read_file(folder_of_real_tokenizers() / "texts.json"));
  std::string all;
  for (size_t i = 0; i < texts.size() && all.size() < 100'000; i += 7) all += texts[i].get<std::string>();
  const Ids whole = ids_of(*tokenizer_, all);
  Ids ids;
  std::string buffer;
  for (size_t i = 0; i < all.size(); i += 777) {
    buffer += all.substr(i, 777);
    buffer.erase(0, tokenizer_->encode_some(buffer, buffer.size(), ids));
  }
  tokenizer_->encode(buffer, ids);
  EXPECT_EQ(ids, whole);
}

TEST_P(RealTokenizers, DecodeEveryId) {
  for (int64_t id = 0; id < tokenizer_->vocab_size(); ++id) tokenizer_->bytes_of(id, false);
}

TEST(RealTokenizersFolder, IsNamed) {
  if (real_tokenizers().empty()) {
    GTEST_SKIP() << "set FSDP_TEST_TOKENIZERS to the folder that tests/data/real_tokenizers/make.py made";
  }
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(RealTokenizers);
INSTANTIATE_TEST_SUITE_P(, RealTokenizers, ::testing::ValuesIn(real_tokenizers()), [](const auto& test) {
  std::string name = test.param;
  for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
  return name;
});

}  // namespace
}  // namespace fsdp::data
