#pragma once

// Writes a token file of any format (token_format.h) that appears under its name only when it is complete and
// on the disk. Memory stays at a few MiB whatever the number of tokens and documents.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <vector>

#include "data/tokens/output_file.h"
#include "data/tokens/token_format.h"
#include "data/tokens/token_turns.h"

namespace fsdp::data {

struct TokenWriterOptions {
  TokenFormat format = TokenFormat::kU16;
  /// Ids are below this limit. Formats with an index store two bytes per token if that is enough.
  int64_t vocab_size = 0;
  bool has_turns = false;  ///< whether to also write the companion of conversations (token_turns.h)
};

/// Writer of one token file. If it is destroyed before commit(), it leaves nothing behind, and an older file
/// of that name stays. Not thread-safe. Throws Error(kIo) for failures of the disk.
class TokenWriter {
 public:
  /// Throws Error(kUsage) for a name under which the file would be read in another format: only flat files of
  /// four bytes may be NAME.u32, a pair must be NAME.bin, no other format may be a .bin with an .idx beside
  /// it, and without turns there must be no companion.
  TokenWriter(const std::filesystem::path& path, const TokenWriterOptions& options = {});

  /// Appends tokens. Throws Error(kData) for an id that the format cannot hold.
  void append(const std::vector<int64_t>& ids);
  /// Appends tokens with the part of each, for TokenWriterOptions::has_turns.
  void append(const std::vector<int64_t>& ids, const std::vector<TokenPart>& parts);
  /// Ends a document of the tokens since the last call. Ignored by formats without documents.
  void end_document();
  int64_t size() const { return size_; }  ///< number of tokens
  int64_t documents() const { return documents_; }
  /// Number of tokens with this part, with TokenWriterOptions::has_turns.
  int64_t count(TokenPart part) const { return turns_ ? turns_->count(part) : 0; }

  /// Flushes the temporary files to the disk. Tokens after the last end_document() also become a document.
  /// Requires: no append() follows.
  void finish();
  /// Gives the finished file its name.
  void commit();

 private:
  void finish_index();
  /// Size of the counts in the index: sequences, and for Megatron documents plus one.
  int64_t index_counts_bytes() const { return format_ == TokenFormat::kMegatron ? 16 : 8; }
  template <typename Stored>
  void append_as(const std::vector<int64_t>& ids);

  std::filesystem::path path_;
  TokenFormat format_;
  TokenType type_;
  OutputFile tokens_;
  std::unique_ptr<OutputFile> index_;
  std::unique_ptr<TurnsWriter> turns_;
  TokenHash hash_;  ///< hash of the tokens, for turns_
  int64_t size_ = 0, documents_ = 0, document_begin_ = 0;
};

/// Throws Error(kUsage) as the constructor does. Programs call it before they start the work.
void check_output_name(const std::filesystem::path& path, TokenFormat format, bool has_turns = false);

}  // namespace fsdp::data
