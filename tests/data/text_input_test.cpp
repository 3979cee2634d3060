#include "data/text_input.h"

#include "data/compressed_fixtures.h"
#include "data/token_fixtures.h"
#include "support/resident_memory.h"

namespace fsdp::data {
namespace {

using fsdp::testing::TemporaryFolder;
using util::ErrorKind;

std::string content_of(const std::string& path, int64_t at_once = 1000) {
  TextInput input(path);
  std::string text;
  while (input.read(at_once, text) > 0) continue;
  EXPECT_EQ(input.read_bytes(), input.file_bytes());
  return text;
}

std::string prose(size_t bytes) {
  std::string text;
  for (int i = 0; text.size() < bytes; ++i) text += "Line " + std::to_string(i * 7919) + " of a text.\n";
  return text;
}

TEST(TextInput, DecompressesMembersAndFramesOneAfterAnother) {
  TemporaryFolder folder;
  const std::string a = prose(300'000), b = prose(700);
  const std::string skipped = std::string("\x50\x2a\x4d\x18\x03\0\0\0abc", 11);
  EXPECT_EQ(content_of(folder.write("a.txt.gz", gzip(a))), a);
  EXPECT_EQ(content_of(folder.write("ab.txt.gz", gzip(a) + gzip("") + gzip(b))), a + b);
  EXPECT_EQ(content_of(folder.write("ab.txt.zst", skipped + zstd(a) + skipped + zstd(b) + skipped)), a + b);
  EXPECT_EQ(content_of(folder.write("ab.zst", zstd(a) + zstd(b)), 1 << 20), a + b);
  // What counts is the content.
  EXPECT_EQ(content_of(folder.write("named.txt", gzip(b))), b);
}

TEST(TextInput, KnowsTheSizeOfTextsThatAreNotCompressed) {
  TemporaryFolder folder;
  EXPECT_EQ(TextInput(folder.write("a.txt", "text")).size_bytes(), 4);
  EXPECT_EQ(TextInput(folder.write("a.txt.gz", gzip("text"))).size_bytes(), -1);
}

TEST(TextInput, RefusesAFileThatIsCutShort) {
  TemporaryFolder folder;
  const std::string text = prose(500'000);
  for (const auto& [name, whole] :
       {std::pair{"a.gz", gzip(text) + gzip("more")}, {"a.zst", zstd(text) + zstd("more")}}) {
    for (size_t missing : {size_t{1}, size_t{3}, size_t{20}, whole.size() / 2}) {
      const std::string path = folder.write(name, whole.substr(0, whole.size() - missing));
      const std::string place = "is cut short: the file ends at byte";
      expect_error(ErrorKind::kData, {path, place}, [&] { content_of(path); });
    }
  }
}

TEST(TextInput, RefusesDamageAndSaysWhere) {
  TemporaryFolder folder;
  for (const auto& [name, whole] :
       {std::pair{"a.gz", gzip(prose(500'000))}, {"a.zst", zstd(prose(500'000))}}) {
    for (size_t at : {size_t{20}, whole.size() / 2, whole.size() - 2}) {
      std::string bytes = whole;
      bytes[at] = static_cast<char>(bytes[at] ^ 0x55);
      const std::string path = folder.write(name, bytes);
      expect_error(ErrorKind::kData, {path, "is damaged (", "at byte "}, [&] { content_of(path); });
    }
    const std::string path = folder.write(name, whole + "and something else");
    expect_error(ErrorKind::kData, {path, "is damaged"}, [&] { content_of(path); });
  }
}

TEST(TextInput, RefusesWhatOnlyFillsTheDisk) {
  TemporaryFolder folder;
  const std::string zeros(4 << 20, '\0');
  for (const auto& [name, bomb] :
       {std::pair{"a.gz", repeated(gzip(zeros), 100)}, {"a.zst", repeated(zstd(zeros), 100)}}) {
    const std::string path = folder.write(name, bomb);
    const int64_t rise = fsdp::testing::rise_of_resident_memory([&] {
      expect_error(ErrorKind::kData, {path, "more than 500 times as large"}, [&] {
        TextInput input(path);
        std::string text;
        do {
          text.clear();
        } while (input.read(1 << 20, text) > 0);
      });
    });
    EXPECT_LT(rise, 32 << 20);
  }
}

TEST(TextInput, RefusesWindowsThatNeedMoreMemoryThanIsUsual) {
  TemporaryFolder folder;
  const std::string text = prose(1000);
  EXPECT_EQ(content_of(folder.write("a.zst", zstd(text, 27))), text);
  const std::string path = folder.write("b.zst", zstd(text, 28));
  expect_error(ErrorKind::kData, {path, "window of more than 128 MiB", "zstdcat"},
               [&] { TextInput input(path); });
}

TEST(TextInput, RefusesOtherContentThanTheNameSays) {
  TemporaryFolder folder;
  auto refuse = [&](const char* name, const std::string& content, const std::string& part) {
    const std::string path = folder.write(name, content);
    expect_error(ErrorKind::kData, {path, part}, [&] { TextInput input(path); });
  };
  refuse("a.txt.gz", "text", "is not compressed by gzip or zstd");
  refuse("empty.gz", gzip(""), "is empty when decompressed");
  refuse("twice.gz", gzip(gzip("text")), "holds a compressed file that is compressed by gzip");
  refuse("a.json.gz", gzip("[1, 2]"), "is a JSON array");
  refuse("table.txt", "PAR1....", "is a parquet table; name it .parquet");
}

TEST(Texts, InAFolderAreSortedAndTakenByTheirNames) {
  TemporaryFolder folder;
  for (const char* name : {"d/e", "d/.git"}) std::filesystem::create_directories(folder / name);
  for (const char* name : {"d/b.jsonl.zst", "d/a.parquet", "d/e/z.txt", "d/e/c.ndjson.gz", "d/README.md",
                           "d/.git/x.txt", "d/.hidden.txt", "d/a.gz", "other"}) {
    folder.write(name, "x");
  }
  std::filesystem::create_symlink(folder / "other", folder / "d/linked.txt");
  std::filesystem::create_symlink(folder / "nowhere", folder / "d/dangling.txt");
  std::vector<std::string> expected = {"-"};
  for (const char* name :
       {"d/a.parquet", "d/b.jsonl.zst", "d/e/c.ndjson.gz", "d/e/z.txt", "d/linked.txt", "other"}) {
    expected.push_back(folder / name);
  }
  EXPECT_EQ(expand_texts({"-", folder / "d", folder / "other"}), expected);
  std::filesystem::create_directories(folder / "empty/d");
  expect_error(ErrorKind::kData, {folder / "empty", "no .txt, .jsonl"},
               [&] { expand_texts({folder / "empty"}); });
}

TEST(Texts, HaveRowsByTheirNames) {
  for (const char* name : {"a.jsonl", "a.ndjson", "a.jsonl.gz", "a.ndjson.zst"})
    EXPECT_TRUE(is_json_lines(name)) << name;
  for (const char* name : {"a.txt", "a.gz", "jsonl", "a.jsonl.bz2"})
    EXPECT_FALSE(is_json_lines(name)) << name;
}

}  // namespace
}  // namespace fsdp::data
