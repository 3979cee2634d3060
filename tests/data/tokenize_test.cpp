#include "data/tokenize.h"

#include <cmath>

#include "data/token_files.h"
#include "data/token_fixtures.h"
#include "data/tokenizer.h"

namespace fsdp::data {
namespace {
using fsdp::testing::TemporaryFolder;
using util::ErrorKind;

std::string text_of(const std::string& path) {
  TokenFiles files({path});
  std::vector<int64_t> ids(static_cast<size_t>(files.size()));
  files.read(0, files.size(), ids.data());
  return make_tokenizer("bytes")->decode(ids);
}

TokenizeOptions options_for(const TemporaryFolder& folder, std::vector<std::string> texts) {
  TokenizeOptions options;
  options.texts = std::move(texts);
  options.output = folder / "out/train.bin";
  return options;
}

TEST(Tokenize, JoinsTheTextsInTheOrderGiven) {
  TemporaryFolder folder;
  auto options = options_for(folder, {folder.write("b", "second\xff"), folder.write("a", "first")});
  TokenizeReport report = tokenize(options);
  EXPECT_EQ(text_of(options.output),
            "second\xff"
            "first");
  EXPECT_EQ(report.tokens, 12);
  EXPECT_EQ(report.text_bytes, 12);
  EXPECT_EQ(report.validation_tokens, 0);
}

TEST(Tokenize, TakesTheValidationPartFromTheEndOfEachText) {
  TemporaryFolder folder;
  auto options =
      options_for(folder, {folder.write("a", "0123456789"), folder.write("b", "abcdefghijklmnopqrst")});
  options.validation_output = folder / "valid/v.bin";
  options.validation_fraction = 0.2;
  TokenizeReport report = tokenize(options);
  EXPECT_EQ(text_of(options.output), "01234567abcdefghijklmnop");
  EXPECT_EQ(text_of(options.validation_output), "89qrst");
  EXPECT_EQ(report.tokens, 24);
  EXPECT_EQ(report.validation_tokens, 6);
}

TEST(Tokenize, StreamsTextsOfManyChunks) {
  TemporaryFolder folder;
  std::string text;
  for (int i = 0; text.size() < 3'500'000; ++i) text += std::to_string(i) + " ";
  auto options = options_for(folder, {folder.write("a", text)});
  options.validation_output = folder / "v.bin";
  options.validation_fraction = 0.4;
  tokenize(options);
  EXPECT_EQ(text_of(options.output) + text_of(options.validation_output), text);
}

TEST(Tokenize, ReplacesAnOlderOutputWhole) {
  TemporaryFolder folder;
  auto options = options_for(folder, {folder.write("a", "new")});
  tokenize(options_for(folder, {folder.write("b", "an older and longer one")}));
  tokenize(options);
  EXPECT_EQ(text_of(options.output), "new");
}

TEST(Tokenize, RefusesTextsThatCannotBeUsedAndWritesNothing) {
  TemporaryFolder folder;
  std::string good = folder.write("good", "text");
  expect_error(ErrorKind::kData, {folder / "none", "No such file"}, [&] {
    tokenize(options_for(folder, {good, folder / "none"}));
  });
  expect_error(ErrorKind::kData, {folder / "empty", "is empty"}, [&] {
    tokenize(options_for(folder, {good, folder.write("empty", "")}));
  });
  expect_error(ErrorKind::kData, {"is a folder"}, [&] {
    tokenize(options_for(folder, {good, folder.path()}));
  });
  EXPECT_FALSE(std::filesystem::exists(folder / "out"));
}

TEST(Tokenize, RefusesToWriteOverAText) {
  TemporaryFolder folder;
  auto options = options_for(folder, {folder.write("a", "text")});
  std::filesystem::create_symlink(folder / "a", folder / "link");
  for (std::string output : {folder / "a", folder / "./a", folder / "link"}) {
    options.output = output;
    expect_error(ErrorKind::kUsage, {"would be lost"}, [&] { tokenize(options); });
  }
  EXPECT_EQ(folder.read("a"), "text");
}

TEST(Tokenize, RefusesOneFileForBothParts) {
  TemporaryFolder folder;
  auto options = options_for(folder, {folder.write("a", "text")});
  options.validation_output = folder / "out/../out/train.bin";
  expect_error(ErrorKind::kUsage, {"same file"}, [&] { tokenize(options); });
}

TEST(Tokenize, RefusesAFolderAsOutput) {
  TemporaryFolder folder;
  auto options = options_for(folder, {folder.write("a", "text")});
  options.output = folder.path();
  expect_error(ErrorKind::kUsage, {"is a folder"}, [&] { tokenize(options); });
  options.output = folder / "new/";
  expect_error(ErrorKind::kUsage, {"is a folder"}, [&] { tokenize(options); });
}

TEST(Tokenize, RefusesFractionsThatLeaveAPartEmpty) {
  TemporaryFolder folder;
  auto options = options_for(folder, {folder.write("a", "text")});
  options.validation_output = folder / "v.bin";
  for (double fraction : {0.0, 1.0, -0.1, 2.0, std::nan("")}) {
    options.validation_fraction = fraction;
    expect_error(ErrorKind::kUsage, {"--validation-fraction"}, [&] { tokenize(options); });
  }
  for (double fraction : {0.01, 0.99}) {
    options.validation_fraction = fraction;
    expect_error(ErrorKind::kData, {"neither may be empty"}, [&] { tokenize(options); });
  }
  EXPECT_EQ(folder.entries(), 1);
}

TEST(Tokenize, RefusesAnUnknownTokenizer) {
  TemporaryFolder folder;
  auto options = options_for(folder, {folder.write("a", "text")});
  options.tokenizer = "words";
  expect_error(ErrorKind::kUsage, {"words", "bytes"}, [&] { tokenize(options); });
}

}  // namespace
}  // namespace fsdp::data
