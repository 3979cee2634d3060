#pragma once

// Files of the tokens of some part of a text. Little-endian:
//
//   8 bytes        "FSDPBLK1"
//   uint32         bytes of a token: 2 or 4
//   uint32         D: documents that begin in the block
//   uint64         N: tokens
//   uint64         XXH3 of the bytes that follow
//   uint32[D]      the tokens at which documents begin
//   token[N]
//
// A block is not flushed to the disk, so it may be damaged after a crash of the machine. The hash detects
// that.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "data/tokens/mapped_file.h"

namespace fsdp::data {

/// Tokens and beginnings of documents, collected for a block.
struct BlockContent {
  std::vector<uint32_t> tokens, starts;
};

/// Writes a block, which appears complete or not at all. Returns its bytes. Throws Error(kIo).
int64_t write_block(const std::filesystem::path& path, const BlockContent& content);

/// A block, mapped read-only. Thread-safe.
class TokenBlock {
 public:
  /// Returns the block of a file with so many tokens; null if there is none, or it is damaged.
  static std::shared_ptr<const TokenBlock> open(const std::filesystem::path& path, int64_t tokens);

  int64_t size() const { return tokens_; }
  /// Copies the tokens [begin, begin + count).
  void read(int64_t begin, int64_t count, int64_t* out) const;
  /// Returns the tokens in [begin, begin + count) at which documents begin, in ascending order.
  std::vector<int64_t> starts_in(int64_t begin, int64_t count) const;

 private:
  explicit TokenBlock(const std::filesystem::path& path) : file_("block of tokens", path.string()) {}
  bool check(int64_t tokens);

  MappedFile file_;
  int64_t token_bytes_ = 0, tokens_ = 0;
  std::span<const uint32_t> starts_;
  const char* first_token_ = nullptr;
};

}  // namespace fsdp::data
