// Byte-level BPE against ids made by PyPI's tokenizers (tests/data/bpe/make_vectors.py), and against
// GPT-2's own vocabulary where FSDP_GPT2_FOLDER names a folder with its encoder.json and vocab.bpe.

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "base/util/file.h"
#include "data/token_fixtures.h"
#include "data/tokenizers/vocabulary_tokenizer.h"
#include "support/source_folder.h"

namespace fsdp::data {
namespace {
using fsdp::testing::TemporaryFolder;
using Ids = std::vector<int64_t>;

const std::string kFolder = testing::source_folder() + "/tests/data/bpe/";

const nlohmann::json& vectors() {
  static const auto parsed = nlohmann::json::parse(util::read_file(kFolder + "vectors.json"));
  return parsed;
}

std::string text_of_all() {
  std::string all;
  for (const auto& text : vectors()["texts"]) all += text.get<std::string>();
  return all;
}

Ids encode(const Tokenizer& tokenizer, std::string_view text) {
  Ids ids;
  tokenizer.encode(text, ids);
  return ids;
}

/// Encodes a text in pieces, as much as is certain each time.
Ids encode_in_pieces(const Tokenizer& tokenizer, std::string_view text, size_t piece_bytes) {
  Ids ids;
  std::string buffer;
  for (size_t i = 0; i < text.size(); i += piece_bytes) {
    buffer += text.substr(i, piece_bytes);
    buffer.erase(0, tokenizer.encode_some(buffer, buffer.size(), ids));
  }
  tokenizer.encode(buffer, ids);
  return ids;
}

class BpeVectors : public ::testing::TestWithParam<std::string> {
 protected:
  std::unique_ptr<Tokenizer> tokenizer = make_tokenizer(kFolder + GetParam() + ".json");
};

TEST_P(BpeVectors, GivesTheIdsOfTokenizers) {
  EXPECT_EQ(tokenizer->vocab_size(), vectors()["vocab_size"][GetParam()]);
  for (size_t i = 0; i < vectors()["texts"].size(); ++i) {
    std::string text = vectors()["texts"][i];
    EXPECT_EQ(encode(*tokenizer, text), vectors()["ids"][GetParam()][i].get<Ids>()) << "\"" << text << "\"";
  }
}

TEST_P(BpeVectors, EveryTextComesBackFromItsIds) {
  if (GetParam() == "removed_kind") {
    EXPECT_EQ(tokenizer->decode(encode(*tokenizer, "to  be\n")), "tobe");  // its pattern drops blanks
    return;
  }
  std::string before = GetParam() == "prefix_kind" ? " " : "";
  for (const auto& entry : vectors()["texts"]) {
    std::string one = entry.get<std::string>();
    if (GetParam() == "prefix_kind" && one.find("<|endoftext|>") != std::string::npos) continue;
    bool prefixed = !one.empty() && one[0] != ' ';
    EXPECT_EQ(tokenizer->decode(encode(*tokenizer, one)), (prefixed ? before : "") + one);
  }
}

TEST_P(BpeVectors, PiecesOfAnyLengthGiveTheIdsOfTheWhole) {
  std::string text = text_of_all() + "\xff\xc3 \xe2\x82 \xf0\x9f\x98 end";
  Ids whole = encode(*tokenizer, text);
  for (size_t piece_bytes : {1, 2, 3, 7, 64, 501}) {
    EXPECT_EQ(encode_in_pieces(*tokenizer, text, piece_bytes), whole) << piece_bytes;
  }
}

TEST_P(BpeVectors, ATextMayBeCutWhereEncodeSomeSays) {
  std::string text = text_of_all();
  Ids whole = encode(*tokenizer, text);
  std::mt19937 random(1);
  for (int i = 0; i < 300; ++i) {
    size_t stop = random() % text.size();
    size_t seen = std::min(text.size(), stop + random() % 200);
    Ids ids;
    size_t cut = tokenizer->encode_some(std::string_view(text).substr(0, seen), stop, ids);
    ASSERT_LE(cut, seen);
    for (int64_t id : encode(*tokenizer, std::string_view(text).substr(cut))) ids.push_back(id);
    EXPECT_EQ(ids, whole) << "stop " << stop << ", seen " << seen << ", cut " << cut;
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, BpeVectors,
                         ::testing::Values("gpt2_kind", "llama3_kind", "digits_kind", "prefix_kind",
                                           "removed_kind"),
                         [](const auto& info) { return info.param; });

TEST(BpeTokenizer, Gpt2sTwoFilesGiveTheIdsOfTokenizerJson) {
  auto tokenizer = make_tokenizer(kFolder + "gpt2_files");
  for (size_t i = 0; i < vectors()["texts"].size(); ++i) {
    EXPECT_EQ(encode(*tokenizer, vectors()["texts"][i].get<std::string>()),
              vectors()["ids"]["gpt2_kind"][i].get<Ids>());
  }
  EXPECT_EQ(make_tokenizer(kFolder + "gpt2_files/encoder.json")->vocab_size(), tokenizer->vocab_size());
}

TEST(BpeTokenizer, BytesThatAreNotUtf8AreTokensOfTheirOwn) {
  auto tokenizer = make_tokenizer(kFolder + "gpt2_kind.json");
  std::string text = "the \xff\xfe and\xc3(\xed\xa0\x80) \xf0\x9f\x98";
  EXPECT_EQ(tokenizer->decode(encode(*tokenizer, text)), text);
  std::string all;
  for (int c = 0; c < 256; ++c) all.push_back(static_cast<char>(c));
  EXPECT_EQ(tokenizer->decode(encode(*tokenizer, all)), all);
  Ids around = encode(*tokenizer, "the"), bad = encode(*tokenizer, "the\xffthe");
  ASSERT_EQ(bad.size(), 2 * around.size() + 1);
  EXPECT_EQ(Ids(bad.begin(), bad.begin() + static_cast<int64_t>(around.size())), around);
}

TEST(BpeTokenizer, SeveralThreadsGetTheSameIds) {
  auto tokenizer = make_tokenizer(kFolder + "llama3_kind.json");
  std::string text = text_of_all();
  Ids expected = encode(*tokenizer, text);
  std::vector<std::thread> threads;
  std::atomic<int> same = 0;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int j = 0; j < 20; ++j) same += encode(*tokenizer, text) == expected;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(same, 80);
}

TEST(BpeTokenizer, NamesTheTokenThatEndsATextAndFindsOthers) {
  auto tokenizer = make_tokenizer(kFolder + "llama3_kind.json");
  EXPECT_EQ(tokenizer->end_of_text(), tokenizer->id_of("<|endoftext|>"));
  EXPECT_EQ(tokenizer->decode({*tokenizer->id_of("<|begin_of_text|>")}), "<|begin_of_text|>");
  EXPECT_EQ(tokenizer->id_of("no such token"), std::nullopt);
  TemporaryFolder folder;
  folder.write("tokenizer.json", util::read_file(kFolder + "llama3_kind.json"));
  folder.write("tokenizer_config.json", R"({"eos_token": {"content": "<|begin_of_text|>"}})");
  EXPECT_EQ(make_tokenizer(folder.path())->end_of_text(), tokenizer->id_of("<|begin_of_text|>"));
  folder.write("tokenizer_config.json", R"({"eos_token": "</nothing>"})");
  expect_error(ErrorKind::kData, {"</nothing>"}, [&] { make_tokenizer(folder.path()); });
}

TEST(BpeTokenizer, RefusesIdsOutsideTheVocabulary) {
  auto tokenizer = make_tokenizer(kFolder + "gpt2_kind.json");
  for (int64_t id : {int64_t{-1}, tokenizer->vocab_size(), INT64_MAX}) {
    expect_error(ErrorKind::kData, {"the id " + std::to_string(id)}, [&] { tokenizer->decode({id}); });
  }
}

TEST(BpeTokenizer, DecodesAnIdInAGapOfTheVocabularyToNothing) {
  auto json = nlohmann::json::parse(util::read_file(kFolder + "gpt2_kind.json"));
  json["added_tokens"].push_back({{"id", 5000}, {"content", "<far>"}, {"special", true}});
  const auto tokenizer = make_tokenizer(parse_tokenizer_json(json.dump(), "t.json"));
  EXPECT_EQ(tokenizer->vocab_size(), 5001);
  EXPECT_EQ(tokenizer->decode({4999, 5000, 4000}), "<far>");
  TextDecoder decoder(*tokenizer);
  EXPECT_EQ(decoder.push(4999), "");
  const std::vector<int64_t> ids = {4999, 5000};
  EXPECT_EQ(TokenBytes(*tokenizer).count(ids.data(), 2), 5);
}

TEST(TextDecoder, GivesWholeCharactersOnly) {
  auto tokenizer = make_tokenizer("bytes");
  TextDecoder decoder(*tokenizer);
  EXPECT_EQ(decoder.push(0xf0), "");
  EXPECT_EQ(decoder.push(0x9f), "");
  EXPECT_EQ(decoder.push(0x98), "");
  EXPECT_EQ(decoder.push(0x80), "\U0001f600");
  EXPECT_EQ(decoder.push('a'), "a");
  EXPECT_EQ(decoder.push(0xc3), "");
  EXPECT_EQ(decoder.push('b'),
            "\xc3"
            "b");
  EXPECT_EQ(decoder.push(0xff), "\xff");
  EXPECT_EQ(decoder.push(0xe2), "");
  EXPECT_EQ(decoder.finish(), "\xe2");
  EXPECT_EQ(decoder.finish(), "");
}

TEST(Gpt2Vocabulary, GivesGpt2sIds) {
  const char* folder = std::getenv("FSDP_GPT2_FOLDER");
  if (folder == nullptr) {
    GTEST_SKIP() << "FSDP_GPT2_FOLDER names no folder with GPT-2's encoder.json and vocab.bpe";
  }
  auto tokenizer = make_tokenizer(folder);
  EXPECT_EQ(tokenizer->vocab_size(), 50257);
  EXPECT_EQ(tokenizer->end_of_text(), 50256);
  EXPECT_EQ(encode(*tokenizer, "Hello world, naïve 😀\n\n  x=1"),
            (Ids{15496, 995, 11, 41492, 30325, 222, 628, 220, 2124, 28, 16}));
}

// ---- errors ----

class BpeFile : public ::testing::Test {
 protected:
  nlohmann::json json = nlohmann::json::parse(util::read_file(kFolder + "gpt2_kind.json"));

  void expect_refused(const std::vector<std::string>& parts) {
    expect_error(ErrorKind::kData, parts,
                 [&] { make_tokenizer(parse_tokenizer_json(json.dump(), "t.json")); });
  }
};

TEST_F(BpeFile, RefusesWhatWouldGiveOtherIdsAndNamesIt) {
  const auto good = json;
  auto with = [&](const std::string& pointer, const nlohmann::json& value, const std::string& part) {
    json = good;
    json[nlohmann::json::json_pointer(pointer)] = value;
    SCOPED_TRACE(pointer);
    expect_refused({"t.json", part});
  };
  with("/normalizer", {{"type", "Lowercase"}}, "the normalizer Lowercase");
  with("/model/type", "WordPiece", "model of type WordPiece");
  with("/model/dropout", 0.1, "dropout");
  with("/model/end_of_word_suffix", "</w>", "end_of_word_suffix");
  with("/model/continuing_subword_prefix", "##", "continuing_subword_prefix");
  with("/pre_tokenizer", nullptr, "no pre-tokenizer ByteLevel");
  with("/pre_tokenizer", {{"type", "BertPreTokenizer"}}, "the pre-tokenizer BertPreTokenizer");
  with("/pre_tokenizer",
       {{"type", "Split"}, {"pattern", {{"Regex", "a"}}}, {"behavior", "MergedWithNext"}, {"invert", false}},
       "MergedWithNext");
  with("/decoder", {{"type", "WordPiece"}}, "the decoder WordPiece");
  with("/post_processor", {{"type", "Unheard"}}, "the post-processor Unheard");
  with("/added_tokens/0/single_word", true, "single_word");
}

TEST_F(BpeFile, RefusesDamagedFiles) {
  const auto good = json;
  auto with = [&](const std::string& pointer, const nlohmann::json& value, const std::string& part) {
    json = good;
    json[nlohmann::json::json_pointer(pointer)] = value;
    SCOPED_TRACE(pointer);
    expect_refused({"t.json", part});
  };
  with("/model", nullptr, "no object \"model\"");
  with("/model/vocab", nlohmann::json::array(), "no object of tokens");
  with("/model/vocab/a", -1, "the id -1");
  with("/model/vocab/a", 1.5, "the id 1.5");
  with("/model/vocab/a", 1 << 30, "the id 1073741824");
  with("/model/merges", "a b", "no list \"merges\"");
  with("/model/merges/0", "ab", "the merge \"ab\"");
  with("/model/merges/0", "a b c", "the merge \"a b c\"");
  with("/model/merges/0", {"a", 1}, "not of two tokens");
  with("/model/merges/0", "q x", "no token \"qx\"");
  with("/added_tokens/0/content", "", "without content");
  for (std::string text : {"", "{", "[]", "{\"model\": 1}"}) {
    expect_error(ErrorKind::kData, {"t.json"}, [&] { parse_tokenizer_json(text, "t.json"); });
  }
  expect_error(ErrorKind::kData, {"nests deeper"},
               [&] { parse_tokenizer_json(std::string(100000, '['), "t.json"); });
}

TEST(MakeTokenizer, RefusesFoldersAndFilesWithoutAVocabulary) {
  TemporaryFolder folder;
  expect_error(ErrorKind::kData, {folder.path(), "contains no vocabulary"},
               [&] { make_tokenizer(folder.path()); });
  std::string text = folder.write("a.txt", "x");
  expect_error(ErrorKind::kUsage, {text, "a file of another kind"}, [&] { make_tokenizer(text); });
  std::string model = folder.write("a.model", "not a model");
  expect_error(ErrorKind::kData, {model, "not a SentencePiece model"}, [&] { make_tokenizer(model); });
  std::string empty = folder.write("b.model", "");
  expect_error(ErrorKind::kData, {empty}, [&] { make_tokenizer(empty); });
  std::filesystem::create_directory(folder / "tokenizer.json");
  expect_error(ErrorKind::kData, {"tokenizer.json"}, [&] { make_tokenizer(folder.path()); });
}

}  // namespace
}  // namespace fsdp::data
