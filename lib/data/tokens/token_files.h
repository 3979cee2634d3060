#pragma once

// Token files, one or several that are read as if they were joined in the order given.
//
// They are mapped read-only, so a training set larger than memory opens at once, and the ranks of a host
// share its pages. Reading is thread-safe.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/tokens/token_format.h"
#include "data/tokens/token_index.h"
#include "data/tokens/token_storage.h"
#include "data/tokens/token_turns.h"

namespace fsdp::data {

/// Ids are below this limit, as those that fit a uint32 are.
inline constexpr int64_t kMaxVocabSize = int64_t{1} << 32;

/// Called for one part of the tokens after another. The first of `ids` is the token at index `begin`.
using VisitTokens = std::function<void(int64_t begin, const std::vector<int64_t>& ids)>;

/// A token file of any format (token_format.h), mapped read-only and checked when it is opened. Thread-safe.
class TokenFile {
 public:
  /// Opens `path`. A pair may also be named by its .idx or without extension. `expected` is the format that
  /// the file must have; a flat format (u16, u32) is then taken whatever the content. Throws Error(kData) for
  /// a file that cannot be used.
  explicit TokenFile(const std::string& path, std::optional<TokenFormat> expected = std::nullopt);

  const std::string& path() const { return path_; }
  TokenFormat format() const { return format_; }
  TokenType type() const { return type_; }
  int64_t size() const { return size_; }  ///< number of tokens

  /// Whether the file records where documents end.
  bool has_documents() const { return index_ != nullptr; }
  int64_t documents() const { return index_ ? index_->documents() : 0; }
  /// Returns the token at which document i begins; size() for i = documents().
  int64_t document_begin(int64_t i) const { return index_->document_begin(i); }

  /// Returns the companion of a file of conversations; null for other files.
  const TokenTurns* turns() const { return turns_.get(); }

  /// Copies the tokens [begin, begin + count). Throws Error(kData) if the file has become shorter since it
  /// was opened, and for an id below 0 or above 2^32 - 1.
  void read(int64_t begin, int64_t count, int64_t* out) const;

  /// Calls MappedFile::release() for the tokens [begin, begin + count).
  void release(int64_t begin, int64_t count) const;

  /// Begins to fetch the tokens [begin, begin + count) of a remote file. Only a hint.
  void will_read(int64_t begin, int64_t count) const;

  /// Visits all tokens, in parts, and releases them.
  void scan(const VisitTokens& visit) const;

 private:
  std::optional<TokenFormat> format_of_content() const;
  void require_tokens(bool any_content) const;
  void open_flat();
  void open_llmc();
  void open_pair();
  void open_turns();
  template <typename Stored>
  void copy(int64_t begin, int64_t count, int64_t* out) const;

  std::string path_;
  std::unique_ptr<TokenStorage> file_;
  std::unique_ptr<TokenIndex> index_;
  std::unique_ptr<TokenTurns> turns_;
  TokenFormat format_ = TokenFormat::kU16;
  TokenType type_ = TokenType::kUint16;
  int64_t header_bytes_ = 0;
  int64_t size_ = 0;
};

class TokenFiles {
 public:
  /// The location of a token of the joined files.
  struct Position {
    std::string path;
    int64_t token;  ///< index in that file
  };

  /// Opens and maps the files, each in its own format, which must be `expected` if given (TokenFile). Throws
  /// Error(kData) if a file cannot be used.
  explicit TokenFiles(const std::vector<std::string>& paths,
                      std::optional<TokenFormat> expected = std::nullopt);

  /// Number of tokens of all files together.
  int64_t size() const { return ends_.back(); }
  const std::vector<std::string>& paths() const { return paths_; }
  /// The file of paths()[i].
  const TokenFile& file(size_t i) const { return *files_.at(i); }
  /// The token of the joined files at which paths()[i] begins.
  int64_t file_begin(size_t i) const { return i == 0 ? 0 : ends_.at(i - 1); }
  /// The largest id that the files' types can hold.
  int64_t largest_possible_id() const;
  int64_t bytes() const;  ///< bytes of all tokens
  /// Whether a file is an object of a store, whose reading takes requests.
  bool has_remote() const;

  /// Copies the tokens [begin, begin + count) of the joined files. Throws Error(kData) if a file has become
  /// shorter since it was opened, and for an id that is not a uint32.
  void read(int64_t begin, int64_t count, int64_t* out) const;

  /// Copies the parts of the tokens [begin, begin + count). Requires: all files have turns().
  void read_parts(int64_t begin, int64_t count, TokenPart* out) const;

  /// Removes the pages of these tokens from this process's resident memory, for scans, whose peak memory
  /// would otherwise include the whole files. The pages stay in the system's cache and are reloaded on
  /// access.
  void release(int64_t begin, int64_t count) const;

  /// Begins to fetch tokens of remote files that will be read. Only a hint.
  void will_read(int64_t begin, int64_t count) const;

  /// Visits the tokens [begin, end) of the joined files, in parts, and releases them.
  void scan(int64_t begin, int64_t end, const VisitTokens& visit) const;

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

/// Checks `count` tokens, the first of which is the token `begin` of the joined files. Throws Error(kData)
/// with the file, the position and the id if a token is not below vocab_size.
void check_ids(const TokenFiles& files, int64_t begin, int64_t count, const int64_t* ids, int64_t vocab_size);

/// Calls check_ids() for every token of the files.
void check_all_ids(const TokenFiles& files, int64_t vocab_size);

/// Returns the largest id among the first `tokens` tokens; 0 if there are none.
int64_t largest_id(const TokenFiles& files, int64_t tokens);

/// Returns the remedy for an id that the model's vocabulary lacks, by the likelier cause.
std::string remedy_for_id(int64_t id);

}  // namespace fsdp::data
