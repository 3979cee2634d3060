#pragma once

// The input of tokenize() and train_tokenizer(): files, compressed or not, patterns of files, folders, standard
// input.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "data/texts/decompressor.h"
#include "data/texts/growth_limit.h"
#include "data/tokens/foreign_content.h"

namespace fsdp::data {

/// Names standard input.
inline constexpr const char* kStandardInput = "-";

/// expand_patterns(), with each folder replaced by the texts in it and in the folders below it, by their names:
/// .txt and names of JSON lines, each also with .gz or .zst, and .parquet, in any case. Hidden files are left out; the others are
/// sorted by their paths. Throws Error(kData) for a folder without any.
std::vector<std::string> expand_texts(const std::vector<std::string>& texts);

/// Whether the file holds one JSON object per line, by its name in any case: .jsonl, .jsonlines, .jl or .ndjson, also
/// with .gz or .zst.
bool is_json_lines(const std::string& path);

/// Whether the file is compressed, by its name: .gz or .zst.
bool is_named_compressed(const std::string& path);

/// A file that is read once from front to back. Not thread-safe.
class InputFile {
 public:
  /// Opens the file; kStandardInput is standard input. All failures are Errors of kind kData that begin with
  /// "the text PATH".
  explicit InputFile(const std::string& path);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  const std::string& path() const { return path_; }
  int fd() const { return fd_; }
  int64_t size_bytes() const { return size_bytes_; }  ///< -1 for standard input
  int64_t read_bytes() const { return read_bytes_; }

  /// Reads `bytes` bytes, fewer only at the end, and returns how many.
  size_t read(size_t bytes, char* to);

  [[noreturn]] void refuse(const std::string& reason) const;

 private:
  void examine();

  std::string path_;
  int fd_ = -1;
  int64_t size_bytes_ = -1, read_bytes_ = 0;
};

/// A text: an InputFile, decompressed if its content is compressed by gzip or zstd, without the byte order mark of
/// UTF-8, which the log reports.
class TextInput {
 public:
  /// Opens the file, and recognises files that are not text by their beginning.
  explicit TextInput(const std::string& path, TextKind kind = TextKind::kPlain);

  const std::string& path() const { return file_.path(); }
  /// Of the text; -1 where it is known only at the end: for standard input and compressed files.
  int64_t size_bytes() const { return size_bytes_; }
  int64_t file_bytes() const { return file_.size_bytes(); }
  /// Of the file, up to what was read.
  int64_t read_bytes() const;

  /// Appends up to `bytes` bytes of the text to `buffer` and returns how many; fewer only at the end. Refuses plain
  /// text that is not UTF-8.
  int64_t read(int64_t bytes, std::string& buffer);

  [[noreturn]] void refuse(const std::string& reason) const { file_.refuse(reason); }

 private:
  void begin();
  size_t decompress(size_t bytes, char* to);
  void check_utf8(std::string_view text, bool ends);

  InputFile file_;
  TextKind kind_;
  int64_t size_bytes_ = -1;
  bool begun_ = false;
  std::string head_;  ///< the beginning of the text, until it is handed out
  std::unique_ptr<Decompressor> decompressor_;
  std::string compressed_;   ///< read from the file
  size_t decompressed_ = 0;  ///< of compressed_
  GrowthLimit growth_;
  bool has_mark_ = false;      ///< a byte order mark was left out, which is to be reported
  int64_t checked_bytes_ = 0;  ///< of the text with its byte order mark, known to be UTF-8
  std::string cut_character_;  ///< its beginning, behind checked_bytes_
};

}  // namespace fsdp::data
