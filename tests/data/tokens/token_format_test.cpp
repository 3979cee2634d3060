#include "data/tokens/token_format.h"

#include <cstring>

#include "data/token_fixtures.h"
#include "data/tokens/token_files.h"

namespace fsdp::data {
namespace {
using fsdp::testing::TemporaryFolder;

template <typename Number>
void put(std::string& bytes, Number value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

template <typename Stored>
std::string stored(const std::vector<int64_t>& ids) {
  std::string bytes;
  for (int64_t id : ids) put(bytes, static_cast<Stored>(id));
  return bytes;
}

std::vector<int64_t> read_all(const TokenFile& file) {
  std::vector<int64_t> ids(static_cast<size_t>(file.size()));
  file.read(0, file.size(), ids.data());
  return ids;
}

std::string llmc(int32_t magic, int32_t version, int32_t count, const std::string& tokens) {
  std::string bytes;
  put(bytes, magic);
  put(bytes, version);
  put(bytes, count);
  bytes.resize(1024);
  return bytes + tokens;
}

/// The parts of an index, each of which a test may corrupt.
struct IndexParts {
  std::string magic = std::string("MMIDIDX\0\0", 9);
  uint64_t version = 1;
  uint8_t code = 8;
  uint64_t sequences = 3;
  uint64_t entries = 3;
  std::vector<int32_t> lengths = {2, 1, 3};
  std::vector<int64_t> pointers = {0, 4, 6};
  std::vector<int64_t> documents = {0, 2, 3};
  bool megatron = true;

  std::string bytes() const {
    std::string out = magic;
    put(out, version);
    put(out, code);
    put(out, sequences);
    if (megatron) put(out, entries);
    for (int32_t length : lengths) put(out, length);
    for (int64_t pointer : pointers) put(out, pointer);
    if (megatron)
      for (int64_t document : documents) put(out, document);
    return out;
  }
};

class TokenFormats : public ::testing::Test {
 protected:
  std::string write_pair(const IndexParts& parts, const std::string& tokens) {
    folder.write("p.idx", parts.bytes());
    return folder.write("p.bin", tokens);
  }
  void expect_refused(const IndexParts& parts, const std::vector<std::string>& texts) {
    std::string path = write_pair(parts, six);
    std::vector<std::string> all = texts;
    all.push_back(folder / "p.idx");
    expect_error(ErrorKind::kData, all, [&] { TokenFile file(path); });
  }

  TemporaryFolder folder;
  std::string six = stored<uint16_t>({10, 11, 12, 13, 14, 15});
};

TEST_F(TokenFormats, AnUnknownExtensionIsTwoBytesAToken) {
  TokenFile file(folder.write("a.bin", six));
  EXPECT_EQ(file.format(), TokenFormat::kU16);
  EXPECT_EQ(read_all(file), (std::vector<int64_t>{10, 11, 12, 13, 14, 15}));
  EXPECT_FALSE(file.has_documents());
}

TEST_F(TokenFormats, TheExtensionU32IsFourBytesAToken) {
  TokenFile file(folder.write("a.u32", stored<uint32_t>({0, 128255, UINT32_MAX})));
  EXPECT_EQ(file.format(), TokenFormat::kU32);
  EXPECT_EQ(read_all(file), (std::vector<int64_t>{0, 128255, UINT32_MAX}));
  expect_error(ErrorKind::kData, {"7 bytes", "multiple of four"},
               [&] { TokenFile(folder.write("b.u32", "1234567")); });
}

TEST_F(TokenFormats, AFlatFormatThatIsToldIsBelieved) {
  std::string path = folder.write("a.bin", stored<uint32_t>({7, 70000}));
  EXPECT_EQ(read_all(TokenFile(path, TokenFormat::kU32)), (std::vector<int64_t>{7, 70000}));
  EXPECT_EQ(TokenFile(path).size(), 4);
  expect_error(ErrorKind::kData, {"must have the format llm.c-u16", "but has u16"},
               [&] { TokenFile file(path, TokenFormat::kLlmcU16); });
}

TEST_F(TokenFormats, ReadsBothHeadersOfLlmc) {
  TokenFile two(folder.write("a.bin", llmc(20240520, 1, 6, six)));
  EXPECT_EQ(two.format(), TokenFormat::kLlmcU16);
  EXPECT_EQ(read_all(two), (std::vector<int64_t>{10, 11, 12, 13, 14, 15}));
  TokenFile four(folder.write("b.bin", llmc(20240801, 7, 2, stored<uint32_t>({128000, 9}))));
  EXPECT_EQ(four.format(), TokenFormat::kLlmcU32);
  EXPECT_EQ(read_all(four), (std::vector<int64_t>{128000, 9}));
}

TEST_F(TokenFormats, RefusesHeadersOfLlmcThatDoNotFit) {
  auto expect = [&](const std::string& bytes, const std::vector<std::string>& parts) {
    std::string path = folder.write("a.bin", bytes);
    expect_error(ErrorKind::kData, parts, [&] { TokenFile file(path); });
  };
  expect(llmc(20240520, 1, 6, six).substr(0, 1023), {"1023 bytes", "header of 1024"});
  expect(llmc(20240520, 2, 6, six), {"must have version 1", "but has 2"});
  expect(llmc(20240801, 1, 3, six), {"must have version 7", "but has 1"});
  expect(llmc(20240520, 1, 7, six), {"7 tokens of 2 bytes", "12 bytes follow"});
  expect(llmc(20240520, 1, -1, six), {"-1 tokens"});
  expect(llmc(20240801, 7, 6, six), {"6 tokens of 4 bytes"});
  expect(llmc(20240520, 1, 0, ""), {"contains no tokens"});
  expect(llmc(20240522, 1, 6, six), {"questions with answers"});
}

TEST_F(TokenFormats, ReadsMegatronsPairWithItsDocuments) {
  std::string path = write_pair({}, six);
  for (const std::string& name : std::vector<std::string>{path, folder / "p.idx", folder / "p"}) {
    TokenFile file(name);
    EXPECT_EQ(file.path(), path);
    EXPECT_EQ(file.format(), TokenFormat::kMegatron);
    EXPECT_EQ(read_all(file), (std::vector<int64_t>{10, 11, 12, 13, 14, 15}));
    ASSERT_EQ(file.documents(), 2);
    EXPECT_EQ(file.document_begin(0), 0);
    EXPECT_EQ(file.document_begin(1), 3);
    EXPECT_EQ(file.document_begin(2), 6);
  }
}

TEST_F(TokenFormats, ReadsFairseqsPairWithASequenceADocument) {
  IndexParts parts;
  parts.megatron = false;
  TokenFile file(write_pair(parts, six));
  EXPECT_EQ(file.format(), TokenFormat::kFairseq);
  ASSERT_EQ(file.documents(), 3);
  EXPECT_EQ(file.document_begin(1), 2);
  EXPECT_EQ(file.document_begin(3), 6);
}

TEST_F(TokenFormats, ReadsEveryTypeOfWholeNumbers) {
  const std::vector<int64_t> ids = {1, 2, 3, 4, 5, 100};
  auto read_as = [&](uint8_t code, int64_t width, const std::string& tokens) {
    IndexParts parts;
    parts.code = code;
    parts.pointers = {0, 2 * width, 3 * width};
    return read_all(TokenFile(write_pair(parts, tokens)));
  };
  EXPECT_EQ(read_as(1, 1, stored<uint8_t>(ids)), ids);
  EXPECT_EQ(read_as(2, 1, stored<int8_t>(ids)), ids);
  EXPECT_EQ(read_as(3, 2, stored<int16_t>(ids)), ids);
  EXPECT_EQ(read_as(4, 4, stored<int32_t>(ids)), ids);
  EXPECT_EQ(read_as(5, 8, stored<int64_t>(ids)), ids);
  EXPECT_EQ(read_as(8, 2, stored<uint16_t>(ids)), ids);
  EXPECT_EQ(read_as(9, 4, stored<uint32_t>(ids)), ids);
  EXPECT_EQ(read_as(10, 8, stored<uint64_t>(ids)), ids);
  expect_error(ErrorKind::kData, {"the id -1 at token 4"}, [&] {
    read_as(4, 4, stored<int32_t>({1, 2, 3, 4, -1, 100}));
  });
  expect_error(ErrorKind::kData, {"the id 4294967296 at token 0"}, [&] {
    read_as(5, 8, stored<int64_t>({int64_t{1} << 32, 2, 3, 4, 1, 100}));
  });
}

TEST_F(TokenFormats, RefusesAnIndexWhoseHeaderDoesNotFit) {
  IndexParts parts;
  parts.version = 2;
  expect_refused(parts, {"must have version 1, but has 2"});
  for (uint8_t code : {0, 6, 7, 11, 255}) {
    parts = {};
    parts.code = code;
    expect_refused(parts, {"dtype code", "but has " + std::to_string(code)});
  }
  parts = {};
  parts.sequences = UINT64_MAX;
  expect_refused(parts, {"18446744073709551615 sequences"});
  parts = {};
  parts.sequences = UINT64_MAX / 12 + 1;  // 12 * S wraps to a small number
  expect_refused(parts, {"sequences of 12 bytes"});
  for (uint64_t entries : {uint64_t{0}, uint64_t{1} << 61, UINT64_MAX}) {
    parts = {};
    parts.entries = entries;
    expect_refused(parts, {"document entries"});
  }
  parts = {};
  parts.sequences = 2;
  expect_refused(parts, {"bytes for 2 sequences"});
  folder.write("p.idx", IndexParts().bytes().substr(0, 20));
  expect_error(ErrorKind::kData, {"20 bytes"}, [&] { TokenFile file(folder / "p.bin"); });
  folder.write("p.idx", IndexParts().bytes() + std::string(3, '\0'));
  expect_error(ErrorKind::kData, {"multimodal"}, [&] { TokenFile file(folder / "p.bin"); });
}

TEST_F(TokenFormats, RefusesSequencesThatOverlapLeaveTheFileOrHaveGaps) {
  IndexParts parts;
  parts.pointers = {0, 2, 6};
  expect_refused(parts, {"sequence 1 at byte 2 instead of byte 4"});
  parts.pointers = {0, 4, 8};
  expect_refused(parts, {"sequence 2 at byte 8"});
  parts.pointers = {INT64_MIN, 4, 6};
  expect_refused(parts, {"sequence 0 at byte -9223372036854775808"});
  parts = {};
  parts.lengths = {-1, 1, 3};
  expect_refused(parts, {"sequence 0 the length -1"});
  parts = {};
  parts.lengths = {2, 1, INT32_MAX};
  expect_refused(parts, {"the tokens have 12 bytes"});
  parts.lengths = {2, 1, 2};
  expect_refused(parts, {"accounts for 10 bytes"});
}

TEST_F(TokenFormats, RefusesDocumentsThatDoNotFit) {
  for (const std::vector<int64_t>& documents :
       {std::vector<int64_t>{1, 2, 3}, {0, 4, 3}, {0, 2, 2}, {0, -1, 3}, {0, 3, 2}, {0, INT64_MAX, 3}}) {
    IndexParts parts;
    parts.documents = documents;
    expect_refused(parts, {"document"});
  }
}

TEST_F(TokenFormats, RefusesAnIndexOfAnotherKind) {
  std::string path = folder.write("p.bin", six);
  folder.write("p.idx", "");
  expect_error(ErrorKind::kData, {path, "p.idx", "move it away"}, [&] { TokenFile file(path); });
  folder.write("p.idx", std::string("TNTIDX\0\0"
                                    "0123456789",
                                    18));
  expect_error(ErrorKind::kData, {"--dataset-impl mmap"}, [&] { TokenFile file(path); });
}

TEST_F(TokenFormats, JoinsFilesOfDifferentFormats) {
  TokenFiles files({write_pair({}, six), folder.write("b.bin", llmc(20240520, 1, 6, six)),
                    folder.write("c.u32", stored<uint32_t>({70000}))});
  ASSERT_EQ(files.size(), 13);
  EXPECT_EQ(files.largest_possible_id(), INT64_C(4294967295));
  std::vector<int64_t> ids(8);
  files.read(5, 8, ids.data());
  EXPECT_EQ(ids, (std::vector<int64_t>{15, 10, 11, 12, 13, 14, 15, 70000}));
}

}  // namespace
}  // namespace fsdp::data
