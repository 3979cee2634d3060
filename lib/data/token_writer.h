#pragma once

// Writes a token file of any format (token_format.h) that appears under its name only when it is complete and
// on the disk. Memory stays at a few MiB whatever the number of tokens and documents.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <vector>

#include "data/output_file.h"
#include "data/token_format.h"

namespace fsdp::data {

struct TokenWriterOptions {
  TokenFormat format = TokenFormat::kU16;
  /// Ids are below this. Formats with an index store two bytes a token where that is enough.
  int64_t vocab_size = 0;
};

/// Not thread-safe. Destroyed before commit(), it leaves nothing behind and an older file of that name as it
/// was. Failures of the disk are Errors of kind kIo.
class TokenWriter {
 public:
  /// Throws Error(kUsage) for a name under which the file would not be read as what it is: flat files of four
  /// bytes are NAME.u32, others are not; a pair is NAME.bin; nothing else is a .bin that has an .idx beside
  /// it.
  TokenWriter(const std::filesystem::path& path, const TokenWriterOptions& options = {});
  ~TokenWriter();

  /// Throws Error(kData) for an id that the format cannot hold.
  void append(const std::vector<int64_t>& ids);
  /// What was appended since the last call is a document. Formats without documents take no notice.
  void end_document();
  int64_t size() const { return size_; }  ///< tokens
  int64_t documents() const { return documents_; }

  /// Flushes the temporary files to the disk. No append() after it. Tokens after the last end_document() are
  /// a document too.
  void finish();
  /// Gives the finished file its name.
  void commit();

 private:
  void write_index();
  template <typename Stored>
  void append_as(const std::vector<int64_t>& ids);

  std::filesystem::path path_;
  TokenFormat format_;
  TokenType type_;
  OutputFile tokens_;
  std::unique_ptr<OutputFile>
      lengths_;  ///< int32 a document, until the index can be written; never committed
  std::unique_ptr<OutputFile> index_;
  int64_t size_ = 0, documents_ = 0, document_begin_ = 0;
};

/// Refuses with Error(kUsage) what the constructor refuses, before work has been done for it.
void check_output_name(const std::filesystem::path& path, TokenFormat format);

}  // namespace fsdp::data
