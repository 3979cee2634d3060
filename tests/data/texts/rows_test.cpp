#include "data/texts/rows.h"

#include <gtest/gtest.h>

#include "data/compressed_fixtures.h"
#include "data/token_fixtures.h"

namespace fsdp::data {
namespace {

using fsdp::testing::TemporaryFolder;

/// The rows of a file and their places.
std::vector<std::pair<std::string, std::string>> rows_of(const std::string& path) {
  const std::unique_ptr<RowFile> file = open_rows(path, {});
  std::vector<std::pair<std::string, std::string>> rows;
  int64_t before = 0;
  for (std::string row; const int64_t number = file->next(row); row.clear()) {
    EXPECT_GT(number, before);
    before = number;
    RowPlace place = file->place();
    EXPECT_EQ(place.number, number);
    EXPECT_EQ(place.path, path);
    place.path = "f";
    rows.emplace_back(row, to_string(place));
  }
  std::string more;
  EXPECT_EQ(file->next(more), 0);
  EXPECT_EQ(more, "");
  return rows;
}

using Rows = std::vector<std::pair<std::string, std::string>>;

TEST(RowFile, ReadsTheElementsOfAnArrayOneAfterAnother) {
  const TemporaryFolder folder;
  const Rows rows = {{R"({"a": "]\\\\\"\", {"})", "element 1 of f (line 2)"},
                     {"{\"b\":\n [1, [2]]}", "element 2 of f (line 2)"},
                     {"3.5", "element 3 of f (line 3)"},
                     {"\"x, y\"", "element 4 of f (line 3)"},
                     {"null", "element 5 of f (line 5)"}};
  std::string text = " \n[";
  for (size_t i = 0; i < rows.size(); ++i)
    text += (i > 0 ? "," : "") + std::string(i == 4 ? "\n\n" : " ") + rows[i].first;
  text += "\t]\r\n";
  EXPECT_EQ(rows_of(folder.write("a.json", text)), rows);
  EXPECT_EQ(rows_of(folder.write("a.jsonl", text)), rows);
  EXPECT_EQ(rows_of(folder.write("a.json.gz", gzip(text))), rows);
  EXPECT_EQ(rows_of(folder.write("marked.json", "\xef\xbb\xbf" + text)), rows);
  EXPECT_EQ(rows_of(folder.write("empty.json", "[\n]")), Rows{});
  EXPECT_EQ(rows_of(folder.write("lines.json", "\n{}\n[]\n")),
            (Rows{{"{}", "line 2 of f"}, {"[]", "line 3 of f"}}));
}

// Reads of 256 KiB end within strings, escapes and white space.
TEST(RowFile, ReadsAnArrayInPieces) {
  const TemporaryFolder folder;
  for (const size_t shift : {0, 1, 2, 3}) {
    Rows rows;
    std::string text = std::string(shift, ' ') + "[";
    for (int i = 0; i < 300; ++i) {
      std::string element = "{\"a\": \"";
      for (int k = 0; k < 700 + i; ++k) element += "\\\"";
      rows.emplace_back(element + "\"}", concat("element ", i + 1, " of f (line ", i + 1, ")"));
      text += (i > 0 ? ",\n" : "") + rows.back().first;
    }
    EXPECT_EQ(rows_of(folder.write("a.json", text + "]")), rows);
  }
}

TEST(RowFile, RefusesADamagedArray) {
  const TemporaryFolder folder;
  const std::vector<std::pair<std::string, std::string>> texts = {
      {"[", "is cut short: its JSON array does not end, after 0 elements"},
      {"[{}", "is cut short: its JSON array does not end, after 1 elements"},
      {"[{}, {\"a", "is cut short: its JSON array does not end, after 2 elements"},
      {"[\"\\", "is cut short"},
      {"[{},", "is cut short"},
      {"[{}\n {}]", "has no comma behind element 1, at line 2"},
      {"[{}, ]", "lacks element 2, at line 1"},
      {"[,{}]", "lacks element 1, at line 1"},
      {"[{}]\n{}", "has text behind its JSON array, at line 2"},
      {"[{}] ]", "has text behind its JSON array"},
  };
  for (const auto& [text, part] : texts) {
    const std::string path = folder.write("a.json", text);
    expect_error(ErrorKind::kData, {path, part}, [&] { rows_of(path); });
  }
}

}  // namespace
}  // namespace fsdp::data
