#pragma once

// Token files: flat little-endian uint16 numbers without a header, one token each. Several files are read as
// if they were joined in the order given.
//
// The files are mapped read-only, so a training set larger than memory costs nothing to open and the ranks of
// a host share its pages. Reading is thread-safe.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace fsdp::data {

/// The range of the file format: a uint16 has this many values.
inline constexpr int64_t kMaxVocabSize = 65536;

class TokenFiles {
 public:
  /// Where a token of the joined files lies.
  struct Position {
    std::string path;
    int64_t token;  ///< index in that file, in tokens from 0
  };

  /// Opens and maps the files. Throws Error(kData) when one is missing, unreadable, not a regular file, empty
  /// or has an odd number of bytes.
  explicit TokenFiles(const std::vector<std::string>& paths);
  ~TokenFiles();
  TokenFiles(TokenFiles&&) noexcept;
  TokenFiles& operator=(TokenFiles&&) noexcept;

  /// Tokens of all files together.
  int64_t size() const;
  const std::vector<std::string>& paths() const { return paths_; }
  /// Tokens of the file paths()[i].
  int64_t file_size(size_t i) const;

  /// Copies the tokens [begin, begin + count) of the joined files. Throws Error(kData) when a file has become
  /// shorter since it was opened.
  void read(int64_t begin, int64_t count, uint16_t* out) const;
  /// The same, widened to the element type of an index tensor.
  void read(int64_t begin, int64_t count, int64_t* out) const;

  /// Takes the pages of these tokens out of this process's resident memory; they stay in the system's cache
  /// and come back when read. For scans, which would otherwise count the whole files into the peak memory.
  void release(int64_t begin, int64_t count) const;

  Position locate(int64_t position) const;

 private:
  class MappedFile;

  template <typename Token>
  void read_as(int64_t begin, int64_t count, Token* out) const;
  /// Calls visit(file, first token in it, tokens) for each file's part of [begin, begin + count).
  template <typename Visit>
  void for_each_part(int64_t begin, int64_t count, const Visit& visit) const;
  size_t file_of(int64_t position) const;

  std::vector<std::string> paths_;
  std::vector<std::unique_ptr<MappedFile>> files_;
  std::vector<int64_t> ends_;  ///< ends_[i]: tokens of the files 0 to i together
};

/// Throws Error(kData) that names the file, the place and the id when one of `count` tokens, of which the
/// first lies at `begin`, is not below vocab_size.
void check_ids(const TokenFiles& files, int64_t begin, int64_t count, const int64_t* ids, int64_t vocab_size);

/// check_ids for every token of the files.
void check_all_ids(const TokenFiles& files, int64_t vocab_size);

}  // namespace fsdp::data
