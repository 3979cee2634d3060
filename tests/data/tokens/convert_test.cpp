#include "data/tokens/convert.h"

#include "data/token_fixtures.h"
#include "data/tokens/token_files.h"
#include "data/tokens/token_writer.h"

namespace fsdp::data {
namespace {
using fsdp::testing::TemporaryFolder;
using Ids = std::vector<int64_t>;

Ids read_all(const std::string& path) {
  TokenFile file(path);
  Ids ids(static_cast<size_t>(file.size()));
  file.read(0, file.size(), ids.data());
  return ids;
}

Ids document_begins(const std::string& path) {
  TokenFile file(path);
  Ids begins;
  for (int64_t i = 0; i <= file.documents(); ++i) begins.push_back(file.document_begin(i));
  return begins;
}

std::string name_for(TokenFormat format) { return format == TokenFormat::kU32 ? "out.u32" : "out.bin"; }

TEST(Convert, EveryFormatHoldsTheSameTokens) {
  // More than one piece of copying, and ids that need all of two bytes.
  Ids expected;
  std::vector<uint16_t> ids = counting(70'000);
  for (int i = 0; i < 5; ++i) expected.insert(expected.end(), ids.begin(), ids.end());
  for (const std::string& name : token_format_names()) {
    SCOPED_TRACE(name);
    TemporaryFolder folder;
    std::string input = write_tokens(folder, "in", ids);
    TokenFormat format = token_format(name);
    ConvertReport report =
        convert({{input, input, input, input, input}, folder / name_for(format), format, {}, {}});
    EXPECT_EQ(report.tokens, 350'000);
    EXPECT_EQ(TokenFile(folder / name_for(format)).format(), format);
    EXPECT_EQ(read_all(folder / name_for(format)), expected);
  }
}

TEST(Convert, DocumentsGoOverWhereBothFormatsKeepThem) {
  TemporaryFolder folder;
  TokenWriter writer(folder / "a.bin", {TokenFormat::kMegatron, 300'000});
  Ids begins = {0}, all;
  for (int64_t length : {3, 1, 400'000, 0, 2, 5}) {
    for (int64_t i = 0; i < length; ++i) all.push_back(i % 300'000);
    writer.append({all.end() - length, all.end()});
    writer.end_document();
    begins.push_back(static_cast<int64_t>(all.size()));
  }
  writer.finish();
  writer.commit();
  EXPECT_EQ(TokenFile(folder / "a.bin").type(), TokenType::kInt32);
  convert({{folder / "a.bin"}, folder / "b.bin", TokenFormat::kFairseq, {}, {}});
  EXPECT_EQ(TokenFile(folder / "b.bin").type(), TokenType::kUint32);
  convert({{folder / "b.bin"}, folder / "c.bin", TokenFormat::kMegatron, {}, {}});
  EXPECT_EQ(document_begins(folder / "b.bin"), begins);
  EXPECT_EQ(document_begins(folder / "c.bin"), begins);
  EXPECT_EQ(read_all(folder / "c.bin"), all);
  EXPECT_EQ(folder.entries(), 6);  // three pairs and nothing else
}

TEST(Convert, CutsFlatFilesIntoDocumentsAtASeparator) {
  TemporaryFolder folder;
  std::string input = write_tokens(folder, "in", {9, 1, 2, 9, 9, 3});
  ConvertReport report = convert({{input, input}, folder / "o.bin", TokenFormat::kMegatron, {}, 9});
  EXPECT_EQ(report.documents, 8);
  EXPECT_EQ(document_begins(folder / "o.bin"), (Ids{0, 1, 4, 5, 6, 7, 10, 11, 12}));
  convert({{input, input}, folder / "p.bin", TokenFormat::kMegatron, {}, {}});
  EXPECT_EQ(document_begins(folder / "p.bin"), (Ids{0, 6, 12}));
}

TEST(Convert, SmallIdsTakeTwoBytesInAPairWhateverTheInput) {
  TemporaryFolder folder;
  std::string input = folder.write("in.u32", std::string("\1\0\0\0\2\0\0\0", 8));
  convert({{input}, folder / "o.bin", TokenFormat::kMegatron, {}, {}});
  EXPECT_EQ(TokenFile(folder / "o.bin").type(), TokenType::kUint16);
}

TEST(Convert, RefusesIdsThatTheFormatCannotHold) {
  TemporaryFolder folder;
  std::string input = folder.write("in.u32", std::string("\1\0\0\0\0\0\1\0", 8));
  for (TokenFormat format : {TokenFormat::kU16, TokenFormat::kLlmcU16}) {
    expect_error(ErrorKind::kData, {"the id 65536", to_string(format)}, [&] {
      convert({{input}, folder / "o.bin", format, {}, {}});
    });
  }
  EXPECT_EQ(folder.entries(), 1);
}

TEST(Convert, RefusesNamesUnderWhichTheOutputWouldBeMisread) {
  TemporaryFolder folder;
  std::string input = write_tokens(folder, "in.bin", {1, 2});
  auto expect = [&](const std::string& output, TokenFormat format, const std::string& part) {
    expect_error(ErrorKind::kUsage, {output, part}, [&] {
      convert({{input}, folder / output, format, {}, {}});
    });
  };
  expect("o.bin", TokenFormat::kU32, "NAME.u32");
  expect("o.u32", TokenFormat::kU16, "NAME.bin");
  expect("o", TokenFormat::kMegatron, "NAME.bin");
  expect("in.bin", TokenFormat::kU16, "would replace the input");
  folder.write("o.idx", "");
  expect("o.bin", TokenFormat::kU16, "o.idx");
}

}  // namespace
}  // namespace fsdp::data
