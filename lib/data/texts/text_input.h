#pragma once

// The input of tokenize() and train_tokenizer(): files, patterns of files, folders, standard input.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/texts/byte_source.h"
#include "data/texts/decompressor.h"
#include "data/texts/growth_limit.h"
#include "data/tokens/foreign_content.h"

namespace fsdp::data {

/// Name of standard input.
inline constexpr const char* kStandardInput = "-";

/// Returns the files of expand_patterns(), with each folder replaced by the texts in it and in its
/// subfolders, by their names (text_names.h). Hidden files are excluded; the others are sorted by their
/// paths. A folder with an index.json of MosaicML's streaming is replaced by the shards that the index lists.
/// Throws Error(kData) for a folder without texts.
std::vector<std::string> expand_texts(const std::vector<std::string>& texts);

/// A file that is read once from a place to its end. Not thread-safe.
class InputFile {
 public:
  /// Opens the file; kStandardInput is standard input. Throws Error(kData) for all failures, with a message
  /// that begins with "the text PATH".
  explicit InputFile(const std::string& path);
  const std::string& path() const { return path_; }
  /// The bytes of the file; null for standard input.
  const std::shared_ptr<const ByteSource>& source() const { return source_; }
  int64_t size_bytes() const { return size_bytes_; }  ///< size of the file; -1 for standard input
  int64_t read_bytes() const { return read_bytes_; }
  /// Goes on at an offset of the file. Requires: not standard input.
  void seek(int64_t offset) { read_bytes_ = offset; }

  /// Reads `bytes` bytes, fewer only at the end. Returns the number read.
  size_t read(size_t bytes, char* to);

  [[noreturn]] void refuse(const std::string& reason) const;

 private:
  std::string path_;
  std::shared_ptr<const ByteSource> source_;
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

  /// Returns the next bytes, or nothing if the text ends before. Takes memory as it reads, whatever the
  /// number.
  std::optional<std::string> read_exactly(int64_t bytes);

  /// Leaves out the first bytes of the text: without reading them unless they are compressed. Requires:
  /// nothing has been read, and not standard input.
  void skip(int64_t bytes);

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
