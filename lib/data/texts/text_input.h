#pragma once

// The input of tokenize() and train_tokenizer(): files, patterns of files, folders, standard input.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "data/texts/decompressor.h"
#include "data/texts/growth_limit.h"
#include "data/tokens/foreign_content.h"

namespace fsdp::data {

/// Name of standard input.
inline constexpr const char* kStandardInput = "-";

/// Returns the files of expand_patterns(), with each folder replaced by the texts in it and in its
/// subfolders, by their names: .txt and names of JSON lines, each also with .gz or .zst, and .parquet, in any
/// case. Hidden files are excluded; the others are sorted by their paths. Throws Error(kData) for a folder
/// without texts.
std::vector<std::string> expand_texts(const std::vector<std::string>& texts);

/// Whether the file has one JSON object per line, by its name in any case: .jsonl, .jsonlines, .jl or
/// .ndjson, also with .gz or .zst.
bool is_json_lines(const std::string& path);

/// Whether the file is compressed, by its name: .gz or .zst.
bool is_named_compressed(const std::string& path);

/// A file that is read once from its beginning to its end. Not thread-safe.
class InputFile {
 public:
  /// Opens the file; kStandardInput is standard input. Throws Error(kData) for all failures, with a message
  /// that begins with "the text PATH".
  explicit InputFile(const std::string& path);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  const std::string& path() const { return path_; }
  int fd() const { return fd_; }
  int64_t size_bytes() const { return size_bytes_; }  ///< size of the file; -1 for standard input
  int64_t read_bytes() const { return read_bytes_; }

  /// Reads `bytes` bytes, fewer only at the end. Returns the number read.
  size_t read(size_t bytes, char* to);

  [[noreturn]] void refuse(const std::string& reason) const;

 private:
  void examine();

  std::string path_;
  int fd_ = -1;
  int64_t size_bytes_ = -1, read_bytes_ = 0;
};

/// The text of an InputFile, decompressed if it is compressed by gzip or zstd, without the byte order mark of
/// UTF-8, whose removal is logged.
class TextInput {
 public:
  /// Opens the file. Refuses files that are not text, which it recognises by their beginning.
  explicit TextInput(const std::string& path, TextKind kind = TextKind::kPlain);

  const std::string& path() const { return file_.path(); }
  /// Bytes of the text; -1 if they are known only at the end, as for standard input and compressed files.
  int64_t size_bytes() const { return size_bytes_; }
  int64_t file_bytes() const { return file_.size_bytes(); }
  /// Bytes of the file that have been read.
  int64_t read_bytes() const;

  /// Appends up to `bytes` bytes of the text to `buffer`, fewer only at the end, and returns the number.
  /// Refuses plain text that is not UTF-8.
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
  std::string head_;  ///< beginning of the text, until it is read
  std::unique_ptr<Decompressor> decompressor_;
  std::string compressed_;   ///< compressed bytes read from the file
  size_t decompressed_ = 0;  ///< number of bytes of compressed_ that are decompressed
  GrowthLimit growth_;
  bool has_mark_ = false;      ///< whether a byte order mark was removed, to be reported
  int64_t checked_bytes_ = 0;  ///< bytes known to be UTF-8, the byte order mark included
  std::string cut_character_;  ///< beginning of a character after checked_bytes_
};

}  // namespace fsdp::data
