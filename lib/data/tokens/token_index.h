#pragma once

// The index (.idx) of a Megatron or fairseq token file. Numbers are little-endian, without padding:
//
//   9 bytes     "MMIDIDX\0\0"
//   uint64      version: 1
//   uint8       type of a token: 1 uint8, 2 int8, 3 int16, 4 int32, 5 int64, 8 uint16, 9 uint32, 10 uint64
//   uint64      S: sequences
//   uint64      D: documents plus one                          (Megatron only)
//   int32[S]    tokens of each sequence
//   int64[S]    byte at which each sequence begins in the .bin
//   int64[D]    the sequence at which each document begins, and S at the end        (Megatron only)
//   int8[S]     mode of each sequence                          (Megatron's multimodal sets only; refused)
//
// Megatron's and fairseq's are distinguished by the size of the file, which differs for given S.

#include <cstdint>
#include <string>

#include "data/tokens/mapped_file.h"
#include "data/tokens/token_format.h"

namespace fsdp::data {

/// The mapped and checked index of a token file. Thread-safe.
class TokenIndex {
 public:
  /// Maps and checks the index at `path`. tokens_bytes is the size of the .bin, which the sequences must fill
  /// one after another without gap or overlap. Throws Error(kData) for a file that does not fit this layout
  /// or the .bin.
  TokenIndex(const std::string& path, const std::string& tokens_path, int64_t tokens_bytes);

  TokenFormat format() const { return format_; }  ///< kMegatron or kFairseq
  TokenType type() const { return type_; }
  int64_t documents() const { return documents_; }
  /// Returns the token at which document i begins; the number of tokens for i = documents(). Throws
  /// Error(kData) if the index has become shorter since it was opened.
  int64_t document_begin(int64_t i) const;

 private:
  void read_header();
  void check_sequences() const;
  void check_documents() const;
  int64_t sequence_begin(int64_t i) const;
  template <typename Number>
  Number at(int64_t offset) const;
  [[noreturn]] void refuse(const std::string& found) const;

  MappedFile file_;
  std::string tokens_path_;
  int64_t tokens_bytes_;
  TokenFormat format_ = TokenFormat::kMegatron;
  TokenType type_ = TokenType::kUint16;
  int64_t sequences_ = 0;
  int64_t documents_ = 0;
  int64_t lengths_ = 0, pointers_ = 0, document_starts_ = 0;  ///< offsets of the arrays in bytes
};

}  // namespace fsdp::data
