#include "data/texts/text_input.h"

#include "base/util/file.h"
#include "base/util/log.h"
#include "data/compressed_fixtures.h"
#include "data/options/text_names.h"
#include "data/texts/rows.h"
#include "data/token_fixtures.h"
#include "support/resident_memory.h"

namespace fsdp::data {
namespace {

using fsdp::testing::TemporaryFolder;

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

TEST(TextInput, LeavesOutTheByteOrderMarkOfUtf8AndSaysSo) {
  TemporaryFolder folder;
  std::vector<std::string> lines;
  util::set_log_sink([&](util::LogLevel, std::string_view line) { lines.emplace_back(line); });
  const std::string path = folder.write("a.txt", "\xef\xbb\xbfText");
  EXPECT_EQ(content_of(path), "Text");
  EXPECT_EQ(TextInput(path).size_bytes(), 4);
  EXPECT_EQ(content_of(folder.write("a.txt.gz", gzip("\xef\xbb\xbfText"))), "Text");
  util::set_log_sink({});
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_NE(lines[0].find("byte order mark at the beginning of " + path), std::string::npos) << lines[0];
  const std::string only = folder.write("b.txt", "\xef\xbb\xbf");
  expect_error(ErrorKind::kData, {only, "only a byte order mark"}, [&] { TextInput input(only); });
}

TEST(TextInput, RefusesOtherEncodingsThanUtf8) {
  TemporaryFolder folder;
  const std::string prose_text = prose(600);
  for (const auto& [mark, encoding, first] : {std::tuple{std::string("\xff\xfe"), "UTF-16", true},
                                              {std::string("\xfe\xff"), "UTF-16", false},
                                              {std::string(), "UTF-16LE", true},
                                              {std::string(), "UTF-16BE", false}}) {
    std::string wide = mark;
    for (const char c : prose_text) wide += first ? std::string{c, '\0'} : std::string{'\0', c};
    for (const char* name : {"a.txt", "a.jsonl"}) {
      const std::string path = folder.write(name, wide);
      expect_error(ErrorKind::kData, {path, encoding, "offset 0", std::string("iconv -f ") + encoding},
                   [&] { TextInput input(path); });
    }
  }
}

TEST(TextInput, RefusesBytesThatAreNotUtf8AndSaysWhere) {
  TemporaryFolder folder;
  for (const size_t offset : {size_t{0}, size_t{1}, size_t{511}, size_t{512}, size_t{513}, size_t{5000}}) {
    SCOPED_TRACE(offset);
    std::string text = prose(6000).insert(offset, "\xe9 ");
    const std::string place = "0xE9 at offset " + std::to_string(offset);
    const std::string path = folder.write("a.txt", text), packed = folder.write("a.txt.gz", gzip(text));
    for (const std::string& each : {path, packed}) {
      for (const int64_t at_once : {1, 7, 1000, 10000}) {
        expect_error(ErrorKind::kData, {each, place, "iconv -f LATIN1"}, [&] { content_of(each, at_once); });
      }
    }
  }
  const std::string cut = folder.write("cut.txt", "caf\xc3");
  for (const int64_t at_once : {1, 4, 10}) {
    expect_error(ErrorKind::kData, {cut, "0xC3 at offset 3"}, [&] { content_of(cut, at_once); });
  }
  const std::string marked = folder.write("marked.txt",
                                          "\xef\xbb\xbf"
                                          "caf\xe9!");
  expect_error(ErrorKind::kData, {"0xE9 at offset 6"}, [&] { content_of(marked); });
  const std::string good = folder.write("good.txt", "caf\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80");
  for (const int64_t at_once : {1, 2, 3, 100}) EXPECT_EQ(content_of(good, at_once), util::read_file(good));
}

TEST(TextInput, TakesJsonOfThatNameWhereRowsAreExpected) {
  TemporaryFolder folder;
  for (const auto& [name, content] :
       {std::pair{"a.json", std::string("{}\n{}")}, {"a.json.gz", gzip("{}\n{}")}, {"a.JSON", "{}\n{}"}}) {
    const std::string path = folder.write(name, content);
    expect_error(ErrorKind::kData, {path, "is a JSON object", "json_lines"}, [&] { TextInput input(path); });
    EXPECT_NO_THROW(TextInput(path, TextKind::kRows));
  }
  const std::string array = folder.write("b.json", "[{}]");
  expect_error(ErrorKind::kData, {array, "is a JSON array", "json_lines"}, [&] { TextInput input(array); });
  EXPECT_NO_THROW(TextInput(array, TextKind::kRows));
}

TEST(Texts, AreKnownByTheirNamesInAnyCase) {
  for (const char* name :
       {"a.jsonl", "a.JSONL", "a.jl", "a.jsonlines", "a.ndjson", "a.jsonl.GZ", "a.Jl.Zst"}) {
    EXPECT_TRUE(is_json_lines(name)) << name;
    EXPECT_TRUE(has_rows(name)) << name;
  }
  EXPECT_TRUE(is_parquet("a.PARQUET"));
  EXPECT_TRUE(is_named_compressed("a.TXT.GZ"));
  EXPECT_FALSE(is_json_lines("a.json"));
  TemporaryFolder folder;
  for (const char* name : {"a.TXT", "b.JsonLines", "c.Parquet", "d.MD"}) folder.write(name, "x");
  EXPECT_EQ(expand_texts({folder.path().string()}).size(), 3u);
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
