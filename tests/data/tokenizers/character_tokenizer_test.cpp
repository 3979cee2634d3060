// Vocabularies of characters: fsdp-data train-tokenizer --type characters, and the tokenizer that reads them.

#include "base/util/file.h"
#include "data/texts/tokenize.h"
#include "data/texts/train_tokenizer.h"
#include "data/token_fixtures.h"
#include "data/tokenizers/tokenizer.h"

namespace fsdp::data {
namespace {

using testing::TemporaryFolder;
using Ids = std::vector<int64_t>;

std::string characters_of(const TemporaryFolder& folder, const std::string& text) {
  TrainTokenizerOptions options;
  options.texts = {folder.write("text", text)};
  options.output = folder / "characters.json";
  options.model_type = "characters";
  train_tokenizer(options);
  return options.output;
}

TEST(Characters, AreNumberedByCodePoint) {
  const TemporaryFolder folder;
  const auto tokenizer = make_tokenizer(characters_of(folder, "na\u00efve \U0001f600\n\n\"z\""));
  EXPECT_EQ(tokenizer->vocab_size(), 10);
  Ids ids;
  tokenizer->encode("\n \"\u00ef\U0001f600aenvz", ids);
  EXPECT_EQ(ids, (Ids{0, 1, 2, 8, 9, 3, 4, 5, 6, 7}));
  EXPECT_EQ(tokenizer->decode({5, 3, 8, 6, 4}), "na\u00efve");
  EXPECT_FALSE(tokenizer->end_of_text().has_value());
}

TEST(Characters, ThatTheVocabularyLacksAreAnError) {
  const TemporaryFolder folder;
  const auto tokenizer = make_tokenizer(characters_of(folder, "abc"));
  Ids ids;
  expect_error(ErrorKind::kData, {"the character \u00ef is none of the 3 characters"},
               [&] { tokenizer->encode("ab\u00ef", ids); });
  expect_error(ErrorKind::kData, {"none of the 3 characters"}, [&] { tokenizer->encode("a\xff", ids); });
}

TEST(Characters, AreCutAnywhereButInside) {
  const TemporaryFolder folder;
  const auto tokenizer = make_tokenizer(characters_of(folder, "a\u00ef"));
  const std::string text = "a\u00ef\u00efa";
  for (size_t stop = 0; stop <= text.size(); ++stop) {
    Ids ids, rest;
    const size_t end = tokenizer->encode_some(text, stop, ids);
    EXPECT_GE(end, stop);
    tokenizer->encode(std::string_view(text).substr(end), ids);
    EXPECT_EQ(ids, (Ids{0, 1, 1, 0})) << stop;
  }
  Ids ids;
  EXPECT_EQ(tokenizer->encode_some(std::string_view(text).substr(0, 2), 2, ids), 1u) << "half a character";
}

TEST(Characters, OfRowsAreThoseOfTheirDocuments) {
  const TemporaryFolder folder;
  TrainTokenizerOptions options;
  options.texts = {folder.write("a.jsonl", "{\"text\": \"ab\"}\nnot json\n{\"text\": \"b\\nc\"}\n")};
  options.output = folder / "characters.json";
  options.model_type = "characters";
  options.skip_bad = 1;
  EXPECT_EQ(train_tokenizer(options).count(), 1);
  EXPECT_EQ(make_tokenizer(options.output)->vocab_size(), 4);
}

TEST(Characters, NeedNoSizeButAJsonFile) {
  const TemporaryFolder folder;
  TrainTokenizerOptions options;
  options.texts = {folder.write("text", "abc")};
  options.model_type = "characters";
  options.output = folder / "c.model";
  expect_error(ErrorKind::kUsage, {"c.model", ".json"}, [&] { train_tokenizer(options); });
  options.output = folder / "c.json";
  options.vocab_size = 3;
  expect_error(ErrorKind::kUsage, {"`vocab_size`"}, [&] { train_tokenizer(options); });
}

// nanoGPT's prepare.py: train_data = data[:int(n * 0.9)]. The text has as many characters as its Shakespeare.
TEST(Characters, AreSplitAsByNanoGptForItsShakespeare) {
  const TemporaryFolder folder;
  std::string text;
  while (text.size() < 1'115'394) text += static_cast<char>('a' + text.size() % 26);
  TokenizeOptions options;
  options.tokenizer = characters_of(folder, text);
  options.texts = {folder / "text"};
  options.output = folder / "train.bin";
  options.validation_output = folder / "validation.bin";
  options.validation_fraction = 0.1000004;
  const TokenizeReport report = tokenize(options);
  EXPECT_EQ(report.tokens, 1'003'854);
  EXPECT_EQ(report.validation_tokens, 111'540);
}

}  // namespace
}  // namespace fsdp::data
