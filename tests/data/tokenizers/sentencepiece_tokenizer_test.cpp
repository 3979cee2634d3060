#include "data/tokenizers/sentencepiece_tokenizer.h"

#include <sentencepiece_processor.h>

#include <random>

#include "data/texts/train_tokenizer.h"
#include "data/token_fixtures.h"

namespace fsdp::data {
namespace {
using fsdp::testing::TemporaryFolder;
using Ids = std::vector<int64_t>;

/// A model of 350 pieces, trained once.
class SentencePiece : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new TemporaryFolder;
    std::mt19937 random(1);
    std::string text;
    for (int i = 0; i < 20'000; ++i) {
      for (uint32_t syllables = 1 + random() % 4; syllables > 0; --syllables) {
        text += "bcdfghklmnprstvw"[random() % 16];
        text += "aeiou"[random() % 5];
      }
      text += i % 10 == 9 ? " na\u00efve\n" : " ";
    }
    TrainTokenizerOptions options;
    options.texts = {folder_->write("text", text)};
    options.vocab_size = 350;
    options.output = *folder_ / "bpe.model";
    train_tokenizer(options);
    options.output = *folder_ / "unigram.model";
    options.model_type = "unigram";
    train_tokenizer(options);
  }
  static void TearDownTestSuite() { delete folder_; }

  static inline TemporaryFolder* folder_ = nullptr;
};

TEST_F(SentencePiece, EveryTextComesBackFromItsIds) {
  for (const char* name : {"bpe.model", "unigram.model"}) {
    auto tokenizer = make_tokenizer(*folder_ / name);
    EXPECT_EQ(tokenizer->vocab_size(), 350);
    for (std::string text :
         {"the question", " the  question ", "a\n\n\tb\n", "na\u00efve \U0001f600 \u65e5", "", "   ", "x"}) {
      Ids ids;
      tokenizer->encode(text, ids);
      EXPECT_EQ(tokenizer->decode(ids), text) << name;
      TextDecoder decoder(*tokenizer);
      std::string streamed;
      for (int64_t id : ids) streamed += decoder.push(id);
      EXPECT_EQ(streamed + decoder.finish(), text) << name;
    }
  }
}

TEST_F(SentencePiece, GivesTheLibrarysIdsAndText) {
  sentencepiece::SentencePieceProcessor library;
  ASSERT_TRUE(library.Load((*folder_ / "bpe.model").string()).ok());
  auto tokenizer = make_tokenizer(*folder_ / "bpe.model");
  for (std::string text : {"To be, or not", "suffer \u00e9 1234"}) {
    std::vector<int> expected = library.EncodeAsIds(text);
    Ids ids;
    tokenizer->encode(text, ids);
    EXPECT_EQ(ids, Ids(expected.begin(), expected.end()));
    EXPECT_EQ(tokenizer->decode(ids), library.DecodeIds(expected));
  }
}

TEST_F(SentencePiece, TextsAreNeverCut) {
  auto tokenizer = make_tokenizer(*folder_ / "bpe.model");
  Ids ids;
  EXPECT_EQ(tokenizer->encode_some("some text", 4, ids), 0u);
  EXPECT_EQ(tokenizer->likely_cut("some text"), 0u);
  EXPECT_TRUE(ids.empty());
}

TEST_F(SentencePiece, HasATokenThatEndsATextAndRefusesIdsOutsideTheVocabulary) {
  auto tokenizer = make_tokenizer(*folder_ / "bpe.model");
  EXPECT_EQ(tokenizer->end_of_text(), tokenizer->id_of("</s>"));
  EXPECT_EQ(tokenizer->id_of("no such piece"), std::nullopt);
  Ids ids = {*tokenizer->id_of("<s>")};
  tokenizer->encode(" x", ids);
  ids.push_back(*tokenizer->end_of_text());
  EXPECT_EQ(tokenizer->decode(ids), " x");
  expect_error(ErrorKind::kData, {"the id 350"}, [&] { tokenizer->decode({350}); });
}

TEST_F(SentencePiece, TheSameTextsGiveTheSameModel) {
  TrainTokenizerOptions options;
  options.texts = {*folder_ / "text"};
  options.vocab_size = 350;
  options.output = *folder_ / "again.model";
  train_tokenizer(options);
  EXPECT_TRUE(folder_->read("again.model") == folder_->read("bpe.model"));
}

}  // namespace
}  // namespace fsdp::data
