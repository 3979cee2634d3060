#pragma once

// Several token files (token_file.h), read as if they were joined in the order given.
//
// The files are mapped read-only, so a training set larger than memory costs nothing to open and the ranks of
// a host share its pages. Reading is thread-safe.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/token_file.h"

namespace fsdp::data {

/// Ids are below this: what a uint32 holds.
inline constexpr int64_t kMaxVocabSize = int64_t{1} << 32;

class TokenFiles {
 public:
  /// Where a token of the joined files lies.
  struct Position {
    std::string path;
    int64_t token;  ///< index in that file, in tokens from 0
  };

  /// Opens and maps the files, each in its own format (or as `told`: TokenFile). Throws Error(kData) when one
  /// cannot be used.
  explicit TokenFiles(const std::vector<std::string>& paths, std::optional<TokenFormat> told = std::nullopt);

  /// Tokens of all files together.
  int64_t size() const { return ends_.back(); }
  const std::vector<std::string>& paths() const { return paths_; }
  /// The file of paths()[i].
  const TokenFile& file(size_t i) const { return *files_.at(i); }
  /// The token of the joined files at which it begins.
  int64_t file_begin(size_t i) const { return i == 0 ? 0 : ends_.at(i - 1); }
  /// The largest id that the files' types can hold.
  int64_t largest_possible_id() const;
  int64_t bytes() const;  ///< of all tokens

  /// Copies the tokens [begin, begin + count) of the joined files. Throws Error(kData) when a file has become
  /// shorter since it was opened, and for an id that is no uint32.
  void read(int64_t begin, int64_t count, int64_t* out) const;

  /// Takes the pages of these tokens out of this process's resident memory; they stay in the system's cache
  /// and come back when read. For scans, which would otherwise count the whole files into the peak memory.
  void release(int64_t begin, int64_t count) const;

  Position locate(int64_t position) const;

 private:
  /// Calls visit(file, first token in it, tokens) for each file's part of [begin, begin + count).
  template <typename Visit>
  void for_each_part(int64_t begin, int64_t count, const Visit& visit) const;
  size_t file_of(int64_t position) const;

  std::vector<std::string> paths_;
  std::vector<std::unique_ptr<TokenFile>> files_;
  std::vector<int64_t> ends_;  ///< ends_[i]: tokens of the files 0 to i together
};

/// Throws Error(kData) that names the file, the place and the id when one of `count` tokens, of which the
/// first lies at `begin`, is not below vocab_size.
void check_ids(const TokenFiles& files, int64_t begin, int64_t count, const int64_t* ids, int64_t vocab_size);

/// What to do about an id that the model's vocabulary lacks: the likelier cause first.
std::string remedy_for_id(int64_t id);

/// check_ids for every token of the files.
void check_all_ids(const TokenFiles& files, int64_t vocab_size);

/// Of the first so many tokens.
int64_t largest_id(const TokenFiles& files, int64_t tokens);

}  // namespace fsdp::data
