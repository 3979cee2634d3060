#pragma once

// The companion of a token file whose documents are conversations. NAME.turns beside the file NAME records
// which tokens the assistant wrote, and where conversations begin. Little-endian:
//
//   8 bytes     "FSDPTURN"
//   uint64      version: 1
//   uint64      N: tokens of the token file
//   uint64      hash of its tokens (TokenHash over their ids)
//   uint64      hash of the bytes that follow (TokenHash over them)
//   uint8[(N + 3) / 4]   two bits for each token, the first in the lowest: its TokenPart
//
// Both hashes are compared when the file is opened. A file of preferences has the same format. Its documents
// are pairs, the chosen answer (kLastTurn) before the rejected one (kAssistant), or single answers of either
// kind. Training on the last turns of such a file is training on the chosen answers.

#include <array>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "data/tokens/mapped_file.h"
#include "data/tokens/output_file.h"
#include "data/tokens/row_encoder.h"

namespace fsdp::data {

/// Hash of a sequence of numbers, however they are divided into calls.
class TokenHash {
 public:
  template <typename Number>
  void add(const Number* numbers, size_t count) {
    for (size_t i = 0; i < count; ++i) {
      hash_ = (hash_ ^ static_cast<uint64_t>(numbers[i])) * 0x9e3779b97f4a7c15ULL;
      hash_ ^= hash_ >> 32;
    }
  }
  uint64_t value() const { return hash_; }

 private:
  uint64_t hash_ = 0x243f6a8885a308d3ULL;
};

/// Returns the path of the companion of a token file.
std::filesystem::path turns_path(const std::filesystem::path& tokens_path);

/// Writes a companion, which appears complete or not at all, as an OutputFile does. Not thread-safe.
class TurnsWriter {
 public:
  explicit TurnsWriter(const std::filesystem::path& tokens_path);

  void append(const std::vector<TokenPart>& parts);
  /// Completes the file. `tokens` is the hash of the token file's ids.
  void finish(const TokenHash& tokens);
  void commit() { file_.commit(); }

  /// Number of tokens with this part.
  int64_t count(TokenPart part) const { return counts_[static_cast<size_t>(part)]; }

 private:
  void write(const std::vector<uint8_t>& bytes);

  OutputFile file_;
  TokenHash hash_;
  int64_t tokens_ = 0;
  std::array<int64_t, 4> counts_{};
  uint8_t pending_ = 0;  ///< bits of the last byte until it is full
};

/// A companion, mapped read-only. Thread-safe.
class TokenTurns {
 public:
  /// Opens the companion of a token file. Throws Error(kData) if it is damaged or has another number of
  /// tokens. Requires: check_tokens() follows.
  TokenTurns(const std::filesystem::path& path, const std::string& tokens_path, int64_t tokens);

  /// Throws Error(kData) unless `tokens` is the hash of the tokens that the companion was written for.
  void check_tokens(const TokenHash& tokens) const;

  TokenPart at(int64_t token) const;
  /// Copies the parts of the tokens [begin, begin + count).
  void read(int64_t begin, int64_t count, TokenPart* out) const;

  /// Number of tokens with this part.
  int64_t count(TokenPart part) const { return counts_[static_cast<size_t>(part)]; }
  /// Hash that identifies the contents (data_identity.h).
  uint64_t hash() const { return hash_; }

  [[noreturn]] void refuse(const std::string& found) const;

 private:
  MappedFile file_;
  std::string tokens_path_;
  int64_t tokens_;
  uint64_t tokens_hash_ = 0, hash_ = 0;
  std::array<int64_t, 4> counts_{};
};

}  // namespace fsdp::data
