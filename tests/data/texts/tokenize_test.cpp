#include "data/texts/tokenize.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include "base/util/file.h"
#include "data/tokenize_fixtures.h"
#include "data/tokenizers/tokenizer.h"
#include "support/resident_memory.h"

namespace fsdp::data {
namespace {
using fsdp::testing::TemporaryFolder;

TEST(Tokenize, JoinsTheTextsInTheOrderGiven) {
  TemporaryFolder folder;
  auto options = tokenize_options(folder, {folder.write("b", "second\u00e9"), folder.write("a", "first")});
  TokenizeReport report = tokenize(options);
  EXPECT_EQ(tokenized_text(options.output),
            "second\u00e9"
            "first");
  EXPECT_EQ(report.tokens, 13);
  EXPECT_EQ(report.text_bytes, 13);
  EXPECT_EQ(report.validation_tokens, 0);
}

TEST(Tokenize, TakesTheValidationPartFromTheEndOfEachText) {
  TemporaryFolder folder;
  auto options =
      tokenize_options(folder, {folder.write("a", "0123456789"), folder.write("b", "abcdefghijklmnopqrst")});
  options.validation_output = folder / "valid/v.bin";
  options.validation_fraction = 0.2;
  TokenizeReport report = tokenize(options);
  EXPECT_EQ(tokenized_text(options.output), "01234567abcdefghijklmnop");
  EXPECT_EQ(tokenized_text(options.validation_output), "89qrst");
  EXPECT_EQ(report.tokens, 24);
  EXPECT_EQ(report.validation_tokens, 6);
}

TEST(Tokenize, StreamsTextsOfManyChunks) {
  TemporaryFolder folder;
  std::string text;
  for (int i = 0; text.size() < 3'500'000; ++i) text += std::to_string(i) + " ";
  auto options = tokenize_options(folder, {folder.write("a", text)});
  options.validation_output = folder / "v.bin";
  options.validation_fraction = 0.4;
  tokenize(options);
  EXPECT_EQ(tokenized_text(options.output) + tokenized_text(options.validation_output), text);
}

TEST(Tokenize, ReplacesAnOlderOutputWhole) {
  TemporaryFolder folder;
  auto options = tokenize_options(folder, {folder.write("a", "new")});
  tokenize(tokenize_options(folder, {folder.write("b", "an older and longer one")}));
  tokenize(options);
  EXPECT_EQ(tokenized_text(options.output), "new");
}

TEST(Tokenize, RefusesTextsThatCannotBeUsedAndWritesNothing) {
  TemporaryFolder folder;
  std::string good = folder.write("good", "text");
  expect_error(ErrorKind::kData, {folder / "none", "No such file"}, [&] {
    tokenize(tokenize_options(folder, {good, folder / "none"}));
  });
  expect_error(ErrorKind::kData, {folder / "empty", "is empty"}, [&] {
    tokenize(tokenize_options(folder, {good, folder.write("empty", "")}));
  });
  expect_error(ErrorKind::kData, {folder.path().string(), "has no text in it"}, [&] {
    tokenize(tokenize_options(folder, {good, folder.path()}));
  });
  EXPECT_FALSE(std::filesystem::exists(folder / "out"));
}

TEST(Tokenize, RefusesToWriteOverAText) {
  TemporaryFolder folder;
  auto options = tokenize_options(folder, {folder.write("a", "text")});
  std::filesystem::create_symlink(folder / "a", folder / "link");
  for (std::string output : {folder / "a", folder / "./a", folder / "link"}) {
    options.output = output;
    expect_error(ErrorKind::kUsage, {"would overwrite one of the texts"}, [&] { tokenize(options); });
  }
  EXPECT_EQ(folder.read("a"), "text");
}

TEST(Tokenize, RefusesOneFileForBothParts) {
  TemporaryFolder folder;
  auto options = tokenize_options(folder, {folder.write("a", "text")});
  options.validation_output = folder / "out/../out/train.bin";
  expect_error(ErrorKind::kUsage, {"same file"}, [&] { tokenize(options); });
}

TEST(Tokenize, RefusesAFolderAsOutput) {
  TemporaryFolder folder;
  auto options = tokenize_options(folder, {folder.write("a", "text")});
  options.output = folder.path();
  expect_error(ErrorKind::kUsage, {"is a folder"}, [&] { tokenize(options); });
  options.output = folder / "new/";
  expect_error(ErrorKind::kUsage, {"is a folder"}, [&] { tokenize(options); });
}

TEST(Tokenize, RefusesFractionsThatLeaveAPartEmpty) {
  TemporaryFolder folder;
  auto options = tokenize_options(folder, {folder.write("a", "text")});
  options.validation_output = folder / "v.bin";
  for (double fraction : {0.0, 1.0, -0.1, 2.0, std::nan("")}) {
    options.validation_fraction = fraction;
    expect_error(ErrorKind::kUsage, {"`validation_fraction`"}, [&] { tokenize(options); });
  }
  for (double fraction : {0.01, 0.99}) {
    options.validation_fraction = fraction;
    expect_error(ErrorKind::kData, {"neither may be empty"}, [&] { tokenize(options); });
  }
  EXPECT_EQ(folder.entries(), 1);
}

TEST(Tokenize, RefusesAnUnknownTokenizer) {
  TemporaryFolder folder;
  auto options = tokenize_options(folder, {folder.write("a", "text")});
  options.tokenizer = "words";
  expect_error(ErrorKind::kUsage, {"words", "bytes"}, [&] { tokenize(options); });
}

// ---- threads, other tokenizers

/// Some words, lines and long runs: places where a cut is easy and where it is not.
std::string mixed_text(size_t bytes, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::string text;
  while (text.size() < bytes) {
    switch (random() % 12) {
      case 0:
        text += "\n\n";
        break;
      case 1:
        text += std::string(random() % 9000, ' ');
        break;
      case 2:
        text += std::string(random() % 9000, 'e');
        break;
      case 3:
        text += "\U0001f600 \u00e9";
        break;
      default:
        text += " the question" + std::to_string(random() % 5000);
    }
  }
  return text;
}

TEST(Tokenize, TextsThatAreCutGiveTheIdsOfTheWhole) {
  TemporaryFolder folder;
  std::string text = mixed_text(3'000'000, 1);
  // Runs that are longer than two neighbouring jobs with their context.
  text += std::string(700'000, 'a') + "\n" + std::string(900'000, ' ') + "x" + mixed_text(300'000, 2);
  auto options = tokenize_options(folder, {folder.write("a", text)});
  options.tokenizer = kGpt2Kind;
  options.document_separator = "none";
  std::vector<int64_t> expected;
  make_tokenizer(kGpt2Kind)->encode(text, expected);
  for (int threads : {1, 3}) {
    options.threads = threads;
    tokenize(options);
    EXPECT_TRUE(tokenized_ids(options.output) == expected) << threads << " threads";
  }
}

TEST(Tokenize, RefusesOutputsThatCannotHoldTheVocabulary) {
  TemporaryFolder folder;
  auto json = nlohmann::json::parse(util::read_file(kGpt2Kind));
  json["model"]["vocab"]["large"] = 70'000;
  auto options = tokenize_options(folder, {folder.write("a", "text")});
  options.tokenizer = folder.write("t.json", json.dump());
  expect_error(ErrorKind::kUsage, {"70001", "NAME.u32"}, [&] { tokenize(options); });
  options.output = folder / "train.u32";
  tokenize(options);
  EXPECT_EQ(TokenFile(options.output).format(), TokenFormat::kU32);
}

TEST(Tokenize, RefusesAPatternThatNothingFits) {
  TemporaryFolder folder;
  expect_error(ErrorKind::kData, {"no file matches", "*.none"},
               [&] { tokenize(tokenize_options(folder, {folder / "*.none"})); });
}

TEST(Tokenize, MemoryDoesNotGrowWithTheText) {
  TemporaryFolder folder;
  std::string chunk = mixed_text(1 << 20, 3);
  {
    std::ofstream file(folder / "a", std::ios::binary);
    for (int i = 0; i < 64; ++i) file << chunk;
  }
  auto options = tokenize_options(folder, {folder / "a"});
  options.threads = 2;
  EXPECT_LT(fsdp::testing::rise_of_resident_memory([&] { tokenize(options); }), 48 << 20);
}

}  // namespace
}  // namespace fsdp::data
