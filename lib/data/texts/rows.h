#pragma once

// Files of rows, each a JSON object: JSON lines, JSON arrays, and parquet tables, archives and shards, whose
// rows become such objects.

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokens/foreign_content.h"

namespace fsdp::data {

/// The location of a row.
struct RowPlace {
  std::string_view path;
  int64_t number = 0;         ///< number of the row, from 1; 0: the whole file
  const char* unit = "line";  ///< kind of row that is counted: "line", "row", "element"
  int64_t line = 0;           ///< line on which an element begins
};

/// Returns "line 7 of web.jsonl", "row 7 of web.parquet", "element 7 of web.json (line 33)", "book.txt".
std::string to_string(const RowPlace& place);

/// The rows of a file, read once from front to back. Not thread-safe.
class RowFile {
 public:
  virtual ~RowFile() = default;

  /// Appends the text of the next row to `text` and returns the row's number, from 1; 0 after the last row.
  /// The text is a line of the file or an element of its array, which may be anything, or the JSON object of
  /// a table's row.
  virtual int64_t next(std::string& text) = 0;

  /// Location of the row that next() returned last. Its path is the string that open_rows() was given.
  virtual RowPlace place() const = 0;

  /// Bytes of the file that have been read.
  virtual int64_t read_bytes() const = 0;

  /// Offset in the (decompressed) file at which the next row can be read by skip_to(); -1: only in order.
  virtual int64_t next_byte() const { return -1; }
  /// Leaves out the rows up to number `row`, behind which next_byte() was `byte`. Requires: no row has been
  /// read.
  virtual void skip_to(int64_t row, int64_t byte);
};

/// Opens a .parquet as a table, a .tar as an archive of WebDataset, a .mds as a shard of MosaicML's
/// streaming, and every other file as JSON: an array if its text begins with a bracket, otherwise lines. The
/// elements of an array are read one after another. `columns` are the columns of a table to include in its
/// rows, as far as the table has them; it must have at least one. Throws Error(kData) for all failures.
std::unique_ptr<RowFile> open_rows(const std::string& path, const std::vector<std::string>& columns);

/// Opens every file once, so that a wrong name or column is reported before the work. `kind` is the expected
/// content of files that are not tables. Returns the bytes of all files; 0 if standard input is among them.
int64_t check_files(const std::vector<std::string>& files, const std::vector<std::string>& columns,
                    TextKind kind = TextKind::kPlain);

/// Parses the JSON object of a row. Throws Error(kData) if the row is not one.
nlohmann::json object_of_row(std::string_view row, const RowPlace& place);

/// The document in a field of a row: text, or tokens.
struct RowDocument {
  std::string text = {};             ///< a string
  std::vector<int64_t> tokens = {};  ///< a list of tokens
  bool is_tokens = false;
};

/// Returns the string or the list of tokens in a field of a row. Throws Error(kData) if the row has neither.
RowDocument document_of_row(std::string_view row, const RowPlace& place, const std::string& field);

/// Returns the string in a field of a row. Throws Error(kData) if the row has no such string.
std::string text_of_row(std::string_view row, const RowPlace& place, const std::string& field);

/// Counts the rows that cannot be used.
class BadRows {
 public:
  /// `most` is the number of rows that may be bad.
  explicit BadRows(int64_t most) : most_(most) {}

  /// Records the error of a row, in order of the rows. Throws it as Error(kData) if too many rows are bad.
  void add(const std::string& message);

  int64_t count() const { return count_; }
  /// Messages of the first kMessages bad rows.
  const std::vector<std::string>& messages() const { return messages_; }
  static constexpr size_t kMessages = 10;

 private:
  int64_t most_, count_ = 0;
  std::vector<std::string> messages_;
};

}  // namespace fsdp::data
