#pragma once

// One token file of any format (token_format.h), mapped read-only and checked when it is opened.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "data/mapped_file.h"
#include "data/token_format.h"
#include "data/token_index.h"

namespace fsdp::data {

/// Thread-safe.
class TokenFile {
 public:
  /// Opens `path`, which for a pair may also be its .idx or the name without extension. `told`: the format
  /// that it must have; a flat one (u16, u32) is then believed whatever the content. Throws Error(kData) for
  /// a file that cannot be used.
  explicit TokenFile(const std::string& path, std::optional<TokenFormat> told = std::nullopt);

  const std::string& path() const { return path_; }
  TokenFormat format() const { return format_; }
  TokenType type() const { return type_; }
  int64_t size() const { return size_; }  ///< tokens

  /// Whether the file says where documents end.
  bool has_documents() const { return index_ != nullptr; }
  int64_t documents() const { return index_ ? index_->documents() : 0; }
  /// The token at which document i begins; for i = documents(), size().
  int64_t document_begin(int64_t i) const { return index_->document_begin(i); }

  /// Copies the tokens [begin, begin + count). Throws Error(kData) when the file has become shorter since it
  /// was opened, and for an id below 0 or above 2^32 - 1.
  void read(int64_t begin, int64_t count, int64_t* out) const;

  /// MappedFile::release() for the tokens [begin, begin + count).
  void release(int64_t begin, int64_t count) const;

 private:
  std::optional<TokenFormat> format_of_content() const;
  void require_tokens() const;
  void open_flat(TokenType type);
  void open_llmc(TokenType type, int32_t version);
  void open_pair();
  template <typename Stored>
  void copy(int64_t begin, int64_t count, int64_t* out) const;

  std::string path_;
  std::unique_ptr<MappedFile> file_;
  std::unique_ptr<TokenIndex> index_;
  TokenFormat format_ = TokenFormat::kU16;
  TokenType type_ = TokenType::kUint16;
  int64_t header_bytes_ = 0;
  int64_t size_ = 0;
};

}  // namespace fsdp::data
