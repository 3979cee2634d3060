#include "data/texts/parquet_rows.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "base/util/file.h"
#include "data/parquet_fixtures.h"
#include "data/token_fixtures.h"
#include "support/resident_memory.h"

namespace fsdp::data {
namespace {

using fsdp::testing::TemporaryFolder;
using nlohmann::json;
using ::testing::ElementsAre;

std::vector<std::string> rows_of(const std::string& path, const std::vector<std::string>& columns) {
  const std::unique_ptr<RowFile> rows = open_parquet(path, columns);
  std::vector<std::string> all;
  std::string row;
  while (const int64_t number = rows->next(row)) {
    EXPECT_EQ(number, static_cast<int64_t>(all.size()) + 1);
    all.push_back(std::move(row));
    row.clear();
  }
  return all;
}

std::vector<std::optional<std::string>> documents(int count) {
  std::vector<std::optional<std::string>> texts;
  for (int i = 0; i < count; ++i) texts.emplace_back("document " + std::to_string(i * 7919));
  return texts;
}

TEST(ParquetRows, AreJsonObjectsOfTheColumnsAskedFor) {
  TemporaryFolder folder;
  const NamedColumns columns = {{"id", column_of({"1", "2", "3"})},
                                {"text", column_of({"caf\u00e9 \"so\" \\\n\x01", std::nullopt, "\xff"})},
                                {"tail", column_of({"x", "y", "z"})}};
  const std::string path = write_parquet(folder / "a.parquet", columns);
  EXPECT_THAT(rows_of(path, {"text"}), ElementsAre("{\"text\":\"caf\u00e9 \\\"so\\\" \\\\\\u000a\\u0001\"}",
                                                   "{\"text\":null}", "{\"text\":\"\xff\"}"));
  EXPECT_THAT(rows_of(path, {"tail", "none", "id"})[1], "{\"id\":\"2\",\"tail\":\"y\"}");
}

TEST(ParquetRows, AreTheSameWhateverTheTypeOfStringAndTheCompression) {
  TemporaryFolder folder;
  const auto texts = documents(1000);
  const auto plain = rows_of(write_parquet(folder / "plain.parquet", {{"text", column_of(texts)}}), {"text"});
  ASSERT_EQ(plain.size(), 1000u);
  EXPECT_EQ(plain[999], "{\"text\":\"document 7911081\"}");
  for (const auto& column :
       {column_of<arrow::LargeStringBuilder>(texts), column_of<arrow::BinaryBuilder>(texts),
        column_of<arrow::LargeBinaryBuilder>(texts), column_of<arrow::StringDictionary32Builder>(texts)}) {
    const std::string path = write_parquet(folder / "typed.parquet", {{"text", column}});
    EXPECT_EQ(rows_of(path, {"text"}), plain) << column->type()->ToString();
  }
  for (const auto compression : {parquet::Compression::UNCOMPRESSED, parquet::Compression::GZIP,
                                 parquet::Compression::ZSTD, parquet::Compression::BROTLI}) {
    const std::string path =
        write_parquet(folder / "c.parquet", {{"text", column_of(texts)}}, 300, compression);
    EXPECT_EQ(rows_of(path, {"text"}), plain);
  }
}

TEST(ParquetRows, RefuseAPageWhoseChecksumDiffers) {
  TemporaryFolder folder;
  const std::string path = write_parquet(folder / "a.parquet", {{"text", column_of(documents(100))}}, 1 << 20,
                                         parquet::Compression::UNCOMPRESSED);
  std::string bytes = util::read_file(path);
  bytes[bytes.find("document 7919")] = 'D';  // a text as good as any
  util::write_file_atomically(path, bytes);
  expect_error(ErrorKind::kData, {path, "is damaged", "CRC"}, [&] { rows_of(path, {"text"}); });
}

/// A column of `rows` equal values.
std::shared_ptr<arrow::Array> repeated_value(const std::string& value, int rows) {
  arrow::Int32Builder indices;
  for (int i = 0; i < rows; ++i) check_status(indices.Append(0));
  return arrow::DictionaryArray::FromArrays(indices.Finish().ValueOrDie(), column_of({value})).ValueOrDie();
}

TEST(ParquetRows, RefuseWhatOnlyFillsTheDisk) {
  TemporaryFolder folder;
  const std::string path =
      write_parquet(folder / "a.parquet", {{"text", repeated_value(std::string(1 << 16, 'a'), 2000)}},
                    1 << 20, parquet::Compression::ZSTD);
  const auto read = [&] {
    const std::unique_ptr<RowFile> rows = open_parquet(path, {"text"});
    for (std::string row; rows->next(row) > 0;) row.clear();
  };
  const int64_t rise = fsdp::testing::rise_of_resident_memory([&] {
    expect_error(ErrorKind::kData, {path, "more than 500 times as large"}, read);
  });
  EXPECT_LT(rise, 48 << 20);
}

TEST(ParquetRows, RefuseARowThatIsTooLong) {
  TemporaryFolder folder;
  arrow::ListBuilder lists(arrow::system_memory_pool(), std::make_shared<arrow::Int8Builder>());
  check_status(lists.Append());
  check_status(static_cast<arrow::Int8Builder*>(lists.value_builder())->AppendNulls(4'000'000));
  const std::string path = write_parquet(folder / "a.parquet", {{"text", lists.Finish().ValueOrDie()}},
                                         1 << 20, parquet::Compression::ZSTD);
  expect_error(ErrorKind::kData, {path}, [&] { rows_of(path, {"text"}); });
}

TEST(ParquetRows, KeepListsOfStructures) {
  TemporaryFolder folder;
  const std::string path = write_parquet(folder / "chat.parquet", {{"messages", messages_column(3)}}, 2);
  const auto rows = rows_of(path, {"messages"});
  ASSERT_EQ(rows.size(), 4u);
  EXPECT_EQ(json::parse(rows[0]), R"({"messages": []})"_json);
  EXPECT_EQ(json::parse(rows[2]), R"({"messages": [{"role": "user", "content": "hello 2", "weight": 0.5},
      {"role": "assistant", "content": null, "weight": "nan"}]})"_json);
  EXPECT_EQ(json::parse(rows[3]), R"({"messages": null})"_json);
}

TEST(ParquetRows, KeepNumbersAndTruthValues) {
  TemporaryFolder folder;
  arrow::Int64Builder integers;
  arrow::BooleanBuilder truths;
  check_status(integers.AppendValues({-9223372036854775807, 3}));
  check_status(truths.AppendValues(std::vector<bool>{true, false}));
  const std::string path = write_parquet(folder / "n.parquet", {{"number", integers.Finish().ValueOrDie()},
                                                                {"truth", truths.Finish().ValueOrDie()}});
  EXPECT_THAT(
      rows_of(path, {"number", "truth"}),
      ElementsAre("{\"number\":-9223372036854775807,\"truth\":true}", "{\"number\":3,\"truth\":false}"));
}

TEST(ParquetRows, NameTheColumnsWhenNoneIsThere) {
  TemporaryFolder folder;
  const std::string path =
      write_parquet(folder / "a.parquet", {{"id", column_of({"1"})}, {"text", column_of({"t"})}});
  expect_error(ErrorKind::kData, {path, "no column \"txt\"", "id, text", "did you mean \"text\"?"},
               [&] { open_parquet(path, {"txt"}); });
  expect_error(ErrorKind::kData, {"no column \"messages\" or \"prompt\"", "`json_field`"}, [&] {
    open_parquet(path, {"messages", "prompt"});
  });
}

TEST(ParquetRows, OfManyRowGroupsTakeLittleMemory) {
  TemporaryFolder folder;
  const std::string path = write_parquet(folder / "a.parquet", {{"text", column_of(documents(3000))}}, 1);
  EXPECT_EQ(rows_of(path, {"text"}).size(), 3000u);
  // 60 MiB of text in one group.
  arrow::StringBuilder builder;
  for (int i = 0; i < 480; ++i)
    check_status(builder.Append(std::string(128 << 10, static_cast<char>('a' + i % 26))));
  const std::string large = write_parquet(folder / "b.parquet", {{"text", builder.Finish().ValueOrDie()}});
  const int64_t rise = fsdp::testing::rise_of_resident_memory([&] {
    const auto rows = open_parquet(large, {"text"});
    std::string row;
    for (; rows->next(row) > 0; row.clear()) EXPECT_EQ(row.size(), (128u << 10) + 11);
  });
  EXPECT_LT(rise, 48 << 20);
}

TEST(ParquetRows, ThatNeedTooMuchMemoryAreRefused) {
  TemporaryFolder folder;
  // A dictionary of one value of 16 MiB, and indices to it: a small file of 3 GiB of text.
  arrow::StringDictionary32Builder builder;
  const std::string text(16 << 20, 'x');
  for (int i = 0; i < 200; ++i) check_status(builder.Append(text));
  const std::string path = write_parquet(folder / "bomb.parquet", {{"text", builder.Finish().ValueOrDie()}});
  EXPECT_LT(std::filesystem::file_size(path), 1u << 20);
  expect_error(ErrorKind::kData, {path, "needs more than ", "smaller pages"},
               [&] { rows_of(path, {"text"}); });
}

TEST(ParquetRows, RefuseDamagedFiles) {
  TemporaryFolder folder;
  const std::string path = write_parquet(folder / "a.parquet", {{"text", column_of(documents(2000))}}, 500,
                                         parquet::Compression::ZSTD);
  const std::string whole = util::read_file(path);
  auto refuse = [&](const std::string& bytes) {
    folder.write("a.parquet", bytes);
    expect_error(ErrorKind::kData, {path, "is damaged or not a parquet table ("},
                 [&] { rows_of(path, {"text"}); });
  };
  refuse("PAR1");
  refuse("a text, not a table");
  refuse(whole.substr(0, whole.size() - 1));
  refuse(whole.substr(0, whole.size() / 2));
  refuse(whole.substr(4));
  std::string pages = whole;
  for (size_t i = 200; i < 400; ++i) pages[i] = static_cast<char>(pages[i] ^ 0x5a);
  refuse(pages);
  std::string footer = whole;
  footer[footer.size() - 5] = 0x7f;
  refuse(footer);
  for (size_t at = whole.size() - 300; at < whole.size() - 8; at += 3) {  // may be read or not
    std::string bytes = whole;
    bytes[at] = static_cast<char>(bytes[at] ^ 0xff);
    folder.write("a.parquet", bytes);
    try {
      rows_of(path, {"text"});
    } catch (const util::Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kData);
      EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
    }
  }
}

}  // namespace
}  // namespace fsdp::data
