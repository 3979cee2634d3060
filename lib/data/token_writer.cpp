#include "data/token_writer.h"

#include <algorithm>

#include "util/error.h"

namespace fsdp::data {
namespace fs = std::filesystem;
namespace {

using util::ErrorKind;
using util::fail;

/// Megatron and fairseq store ids below this in two bytes.
constexpr int64_t kIndexedUint16Limit = 65500;
constexpr int64_t kCopiedEntries = 1 << 16;

TokenType stored_type(const TokenWriterOptions& options) {
  switch (options.format) {
    case TokenFormat::kU16:
    case TokenFormat::kLlmcU16:
      return TokenType::kUint16;
    case TokenFormat::kU32:
    case TokenFormat::kLlmcU32:
      return TokenType::kUint32;
    case TokenFormat::kMegatron:
      // Megatron's own readers have no unsigned type of four bytes.
      return options.vocab_size < kIndexedUint16Limit ? TokenType::kUint16 : TokenType::kInt32;
    case TokenFormat::kFairseq:
      return options.vocab_size < kIndexedUint16Limit ? TokenType::kUint16 : TokenType::kUint32;
  }
  return TokenType::kUint16;
}

}  // namespace

void check_output_name(const fs::path& path, TokenFormat format) {
  std::string extension = path.extension().string();
  if (format == TokenFormat::kU32 && extension != kUint32Extension) {
    fail(ErrorKind::kUsage, "the output ", path.string(), " is to hold four bytes a token (u32), which is ",
         "told by the name NAME", kUint32Extension, "; name it so or choose another `format`");
  }
  if (format == TokenFormat::kU16 && extension == kUint32Extension) {
    fail(ErrorKind::kUsage, "the output ", path.string(),
         " is to hold two bytes a token (u16), and the name ",
         "tells four; name it NAME.bin or choose the `format` u32");
  }
  if (has_documents(format) && extension != ".bin") {
    fail(ErrorKind::kUsage, "the output ", path.string(), " is to be a pair of files (", to_string(format),
         "), NAME.bin and NAME.idx; name it NAME.bin");
  }
  std::error_code error;
  if (!has_documents(format) && extension == ".bin" && fs::exists(index_path(path), error)) {
    fail(ErrorKind::kUsage, "the output ", path.string(), " would be read with ", index_path(path).string(),
         ", which is there and belongs to other tokens; move that away or choose another name");
  }
}

TokenWriter::TokenWriter(const fs::path& path, const TokenWriterOptions& options)
    : path_((check_output_name(path, options.format), path)),
      format_(options.format),
      type_(stored_type(options)),
      tokens_(path) {
  if (format_ == TokenFormat::kLlmcU16 || format_ == TokenFormat::kLlmcU32) {
    std::vector<char> room(static_cast<size_t>(LlmcHeader::kBytes));
    tokens_.append(room.data(), LlmcHeader::kBytes);
  }
  if (has_documents(format_)) {
    lengths_ = std::make_unique<OutputFile>(fs::path(path) += ".lengths");
    index_ = std::make_unique<OutputFile>(index_path(path));
  }
}

TokenWriter::~TokenWriter() = default;

template <typename Stored>
void TokenWriter::append_as(const std::vector<int64_t>& ids) {
  std::vector<Stored> tokens(ids.size());
  const int64_t largest = largest_id_of(type_);
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] > largest) {
      fail(ErrorKind::kData, "token ", size_ + static_cast<int64_t>(i), " of the output ", path_.string(),
           " has the id ", ids[i], " where the format ", to_string(format_), " holds 0 to ", largest, " (",
           to_string(type_), "); choose a format of four bytes a token, such as u32");
    }
    tokens[i] = static_cast<Stored>(ids[i]);
  }
  tokens_.append(tokens.data(), static_cast<int64_t>(tokens.size() * sizeof(Stored)));
}

void TokenWriter::append(const std::vector<int64_t>& ids) {
  if (bytes_of(type_) == 2) {
    append_as<uint16_t>(ids);
  } else {
    append_as<uint32_t>(ids);  // int32 has the same bytes for what it can hold
  }
  size_ += static_cast<int64_t>(ids.size());
}

void TokenWriter::end_document() {
  ++documents_;
  if (lengths_) {
    int64_t length = size_ - document_begin_;
    if (length > INT32_MAX) {
      fail(ErrorKind::kData, "document ", documents_ - 1, " of the output ", path_.string(), " has ", length,
           " tokens where the format ", to_string(format_), " holds at most ", INT32_MAX,
           " a document; cut the text into documents or choose a format without them, such as u16");
    }
    auto stored = static_cast<int32_t>(length);
    lengths_->append(&stored, sizeof(stored));
  }
  document_begin_ = size_;
}

void TokenWriter::write_index() {
  index_->append(kIndexMagic, kIndexMagicBytes);
  index_->append(&kIndexVersion, sizeof(kIndexVersion));
  uint8_t code = index_code(type_);
  index_->append(&code, sizeof(code));
  auto sequences = static_cast<uint64_t>(documents_);
  index_->append(&sequences, sizeof(sequences));
  if (format_ == TokenFormat::kMegatron) {
    uint64_t entries = sequences + 1;
    index_->append(&entries, sizeof(entries));
  }
  std::vector<int32_t> lengths;
  auto for_each_chunk = [&](const auto& visit) {
    for (int64_t begin = 0; begin < documents_; begin += kCopiedEntries) {
      int64_t count = std::min(kCopiedEntries, documents_ - begin);
      lengths.resize(static_cast<size_t>(count));
      lengths_->read_back(4 * begin, lengths.data(), 4 * count);
      visit(begin);
    }
  };
  for_each_chunk([&](int64_t) { index_->append(lengths.data(), static_cast<int64_t>(4 * lengths.size())); });
  int64_t pointer = 0;
  for_each_chunk([&](int64_t) {
    for (int32_t length : lengths) {
      index_->append(&pointer, sizeof(pointer));
      pointer += length * bytes_of(type_);
    }
  });
  if (format_ != TokenFormat::kMegatron) return;
  for (int64_t i = 0; i <= documents_; ++i) index_->append(&i, sizeof(i));
}

void TokenWriter::finish() {
  if (size_ > document_begin_) end_document();
  if (format_ == TokenFormat::kLlmcU16 || format_ == TokenFormat::kLlmcU32) {
    if (size_ > INT32_MAX) {
      fail(ErrorKind::kData, "the output ", path_.string(), " would have ", size_,
           " tokens where llm.c's header counts to ", INT32_MAX,
           "; write several files or choose another `format`");
    }
    bool two_bytes = format_ == TokenFormat::kLlmcU16;
    LlmcHeader header{.magic = two_bytes ? LlmcHeader::kMagicU16 : LlmcHeader::kMagicU32,
                      .version = two_bytes ? LlmcHeader::kVersionU16 : LlmcHeader::kVersionU32,
                      .tokens = static_cast<int32_t>(size_)};
    static_assert(sizeof(header) == 12);
    tokens_.overwrite(0, &header, sizeof(header));
  }
  if (index_) {
    write_index();
    index_->finish();
    lengths_.reset();
  }
  tokens_.finish();
}

void TokenWriter::commit() {
  // The index first: a .bin without its index would be taken for a flat file, and an index that does not fit
  // the .bin beside it is refused.
  if (index_) index_->commit();
  tokens_.commit();
}

}  // namespace fsdp::data
