#include "data/tokens/token_writer.h"

#include <algorithm>
#include <array>

#include "base/util/error.h"
#include "base/util/extension.h"

namespace fsdp::data {
namespace fs = std::filesystem;
namespace {

/// Megatron and fairseq store ids below this in two bytes.
constexpr int64_t kIndexedUint16Limit = 65500;
constexpr int64_t kCopiedEntries = 1 << 16;
constexpr int64_t kIndexCountsOffset = kIndexMagicBytes + sizeof(kIndexVersion) + 1;

TokenType stored_type(const TokenWriterOptions& options) {
  const bool two_bytes = has_documents(options.format) ? options.vocab_size < kIndexedUint16Limit
                                                       : has_two_bytes(options.format);
  if (two_bytes) return TokenType::kUint16;
  // Megatron's own readers have no unsigned type of four bytes.
  return options.format == TokenFormat::kMegatron ? TokenType::kInt32 : TokenType::kUint32;
}

}  // namespace

void check_output_name(const fs::path& path, TokenFormat format, bool has_turns) {
  const std::string extension = util::extension_of(path);
  if (format == TokenFormat::kU32 && extension != kUint32Extension) {
    fail(ErrorKind::kUsage, "the output ", path.string(), " would have four bytes per token (u32), which is ",
         "recognised by the name NAME", kUint32Extension, "; name it that way or choose another `format`");
  }
  if (format == TokenFormat::kU16 && extension == kUint32Extension) {
    fail(ErrorKind::kUsage, "the output ", path.string(),
         " would have two bytes per token (u16), but its name ",
         "implies four; name it NAME.bin or choose the `format` u32");
  }
  if (has_documents(format) && extension != ".bin") {
    fail(ErrorKind::kUsage, "the output ", path.string(), " would be a pair of files (", to_string(format),
         "), NAME.bin and NAME.idx; name it NAME.bin");
  }
  std::error_code error;
  if (!has_turns && fs::exists(turns_path(path), error)) {
    fail(ErrorKind::kUsage, "the output ", path.string(), " would be read with ", turns_path(path).string(),
         ", which exists and belongs to the tokens of conversations; delete that or choose another name");
  }
  if (!has_documents(format) && extension == ".bin" && fs::exists(index_path(path), error)) {
    fail(ErrorKind::kUsage, "the output ", path.string(), " would be read with ", index_path(path).string(),
         ", which exists and belongs to other tokens; move that away or choose another name");
  }
}

TokenWriter::TokenWriter(const fs::path& path, const TokenWriterOptions& options)
    : path_((check_output_name(path, options.format, options.has_turns), path)),
      format_(options.format),
      type_(stored_type(options)),
      tokens_(path) {
  if (is_llmc(format_)) {
    std::vector<char> room(static_cast<size_t>(LlmcHeader::kBytes));
    tokens_.append(room.data(), LlmcHeader::kBytes);
  }
  if (options.has_turns) turns_ = std::make_unique<TurnsWriter>(path);
  if (has_documents(format_)) {
    index_ = std::make_unique<OutputFile>(index_path(path));
    index_->append(kIndexMagic, kIndexMagicBytes);
    index_->append(&kIndexVersion, sizeof(kIndexVersion));
    const uint8_t code = index_code(type_);
    index_->append(&code, sizeof(code));
    // Placeholder: the counts are not known yet.
    index_->append(std::array<uint64_t, 2>{}.data(), index_counts_bytes());
  }
}

template <typename Stored>
void TokenWriter::append_as(const std::vector<int64_t>& ids) {
  std::vector<Stored> tokens(ids.size());
  const int64_t largest = largest_id_of(type_);
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] > largest) {
      fail(ErrorKind::kData, "token ", size_ + static_cast<int64_t>(i), " of the output ", path_.string(),
           " has the id ", ids[i], ", but the format ", to_string(format_), " allows 0 to ", largest, " (",
           to_string(type_), "); choose a format with four bytes per token, such as u32");
    }
    tokens[i] = static_cast<Stored>(ids[i]);
  }
  tokens_.append(tokens.data(), static_cast<int64_t>(tokens.size() * sizeof(Stored)));
}

void TokenWriter::append(const std::vector<int64_t>& ids) {
  if (bytes_of(type_) == 2) {
    append_as<uint16_t>(ids);
  } else {
    append_as<uint32_t>(ids);  // also for int32, whose non-negative values have the same bytes
  }
  size_ += static_cast<int64_t>(ids.size());
}

void TokenWriter::append(const std::vector<int64_t>& ids, const std::vector<TokenPart>& parts) {
  FSDP_CHECK(turns_ != nullptr && ids.size() == parts.size(), ids.size(), " tokens, ", parts.size(),
             " parts");
  append(ids);
  hash_.add(ids.data(), ids.size());
  turns_->append(parts);
}

void TokenWriter::end_document() {
  ++documents_;
  if (index_) {
    int64_t length = size_ - document_begin_;
    if (length > INT32_MAX) {
      fail(ErrorKind::kData, "document ", documents_ - 1, " of the output ", path_.string(), " has ", length,
           " tokens, but the format ", to_string(format_), " allows at most ", INT32_MAX,
           " per document; split the text into documents or choose a format without them, such "
           "as u16");
    }
    auto stored = static_cast<int32_t>(length);
    index_->append(&stored, sizeof(stored));
  }
  document_begin_ = size_;
}

/// Completes the index, which already has the lengths of documents: writes its header and its other arrays.
void TokenWriter::finish_index() {
  const auto sequences = static_cast<uint64_t>(documents_);
  const std::array<uint64_t, 2> counts = {sequences, sequences + 1};
  index_->overwrite(kIndexCountsOffset, counts.data(), index_counts_bytes());
  const int64_t lengths_offset = kIndexCountsOffset + index_counts_bytes();
  std::vector<int32_t> lengths;
  int64_t pointer = 0;
  for (int64_t begin = 0; begin < documents_; begin += kCopiedEntries) {
    lengths.resize(static_cast<size_t>(std::min(kCopiedEntries, documents_ - begin)));
    index_->read_back(lengths_offset + 4 * begin, lengths.data(), static_cast<int64_t>(4 * lengths.size()));
    for (int32_t length : lengths) {
      index_->append(&pointer, sizeof(pointer));
      pointer += length * bytes_of(type_);
    }
  }
  if (format_ != TokenFormat::kMegatron) return;
  for (int64_t i = 0; i <= documents_; ++i) index_->append(&i, sizeof(i));
}

void TokenWriter::finish() {
  if (size_ > document_begin_) end_document();
  if (is_llmc(format_)) {
    if (size_ > INT32_MAX) {
      fail(ErrorKind::kData, "the output ", path_.string(), " would have ", size_,
           " tokens, but llm.c's header counts only to ", INT32_MAX,
           "; write several files or choose another `format`");
    }
    const bool two_bytes = has_two_bytes(format_);
    LlmcHeader header{.magic = two_bytes ? LlmcHeader::kMagicU16 : LlmcHeader::kMagicU32,
                      .version = two_bytes ? LlmcHeader::kVersionU16 : LlmcHeader::kVersionU32,
                      .tokens = static_cast<int32_t>(size_)};
    static_assert(sizeof(header) == 12);
    tokens_.overwrite(0, &header, sizeof(header));
  }
  if (index_) {
    finish_index();
    index_->finish();
  }
  if (turns_) turns_->finish(hash_);
  tokens_.finish();
}

void TokenWriter::commit() {
  // The index and the companion are named first, because a .bin without its index would be read as a flat
  // file, and one without its companion as a text, while an index or a companion that does not fit the .bin
  // beside it is refused.
  if (index_) index_->commit();
  if (turns_) turns_->commit();
  tokens_.commit();
}

}  // namespace fsdp::data
