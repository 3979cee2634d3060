#include "data/tokens/token_index.h"

#include <cstring>

#include "base/util/error.h"

namespace fsdp::data {
namespace {

constexpr int64_t kTypeOffset = kIndexMagicBytes + 8;
constexpr int64_t kSequencesOffset = kTypeOffset + 1;
constexpr int64_t kFairseqArrays = kSequencesOffset + 8;
constexpr int64_t kMegatronArrays = kFairseqArrays + 8;

}  // namespace

TokenIndex::TokenIndex(const std::string& path, const std::string& tokens_path, int64_t tokens_bytes)
    : file_("index", path), tokens_path_(tokens_path), tokens_bytes_(tokens_bytes) {
  read_header();
  check_sequences();
  if (format_ == TokenFormat::kMegatron) check_documents();
  file_.release(0, file_.size_bytes());
}

void TokenIndex::refuse(const std::string& found) const {
  file_.refuse(concat(found, " (the tokens are in ", tokens_path_, ")"),
               "one of the two was cut off or belongs to another file, so create or copy both again");
}

template <typename Number>
Number TokenIndex::at(int64_t offset) const {
  Number value;
  std::memcpy(&value, file_.data() + offset, sizeof(value));
  return value;
}

void TokenIndex::read_header() {
  if (file_.size_bytes() < kFairseqArrays) {
    refuse(concat("has only ", file_.size_bytes(), " bytes instead of a header of ", kFairseqArrays));
  }
  if (auto version = at<uint64_t>(kIndexMagicBytes); version != kIndexVersion) {
    refuse(concat("must have version ", kIndexVersion, ", but has ", version));
  }
  int code = at<uint8_t>(kTypeOffset);
  const std::optional<TokenType> type = type_of_index_code(code);
  if (!type) {
    refuse(concat("must have the dtype code of an integer type (1 to 5, 8, 9 or 10), but has ", code,
                  (code == 6 || code == 7) ? " (floating point)" : ""));
  }
  type_ = *type;
  // The bounds are checked before products, since the counts come from the file and may be anything.
  auto sequences = at<uint64_t>(kSequencesOffset);
  auto size = static_cast<uint64_t>(file_.size_bytes());
  if (sequences > size / 12) {
    refuse(concat("declares ", sequences, " sequences of 12 bytes each, but has ", size, " bytes"));
  }
  sequences_ = static_cast<int64_t>(sequences);
  if (file_.size_bytes() == kFairseqArrays + 12 * sequences_) {
    format_ = TokenFormat::kFairseq;
    lengths_ = kFairseqArrays;
    documents_ = sequences_;
  } else {
    if (file_.size_bytes() < kMegatronArrays) refuse(concat("has ", size, " bytes, too few for its counts"));
    auto entries = at<uint64_t>(kFairseqArrays);
    if (entries == 0 || entries > size / 8) {
      refuse(concat("declares ", entries, " document entries, but has ", size, " bytes"));
    }
    int64_t expected = kMegatronArrays + 12 * sequences_ + 8 * static_cast<int64_t>(entries);
    if (file_.size_bytes() == expected + sequences_) {
      file_.refuse("belongs to a multimodal set, whose sequences are not all text",
                   "use a set of text only (without modes)");
    }
    if (file_.size_bytes() != expected) {
      refuse(concat("must have ", expected, " bytes for ", sequences_, " sequences and ", entries,
                    " document entries, but has ", size));
    }
    lengths_ = kMegatronArrays;
    documents_ = static_cast<int64_t>(entries) - 1;
  }
  pointers_ = lengths_ + 4 * sequences_;
  document_starts_ = pointers_ + 8 * sequences_;
}

void TokenIndex::check_sequences() const {
  const int64_t width = bytes_of(type_);
  int64_t end = 0;
  for (int64_t i = 0; i < sequences_; ++i) {
    int64_t length = at<int32_t>(lengths_ + 4 * i);
    int64_t pointer = at<int64_t>(pointers_ + 8 * i);
    if (length < 0) refuse(concat("gives sequence ", i, " the length ", length));
    if (pointer != end) {
      refuse(concat("starts sequence ", i, " at byte ", pointer, " instead of byte ", end,
                    ", the end of the one before it"));
    }
    // The sum does not overflow: it is at most 2^31 * 8 above a value below 2^63 / 2, since tokens_bytes_
    // bounds `end`.
    end += length * width;
    if (end > tokens_bytes_) {
      refuse(
          concat("ends sequence ", i, " at byte ", end, ", but the tokens have ", tokens_bytes_, " bytes"));
    }
  }
  if (end != tokens_bytes_) {
    refuse(concat("accounts for ", end, " bytes of tokens, but there are ", tokens_bytes_));
  }
}

void TokenIndex::check_documents() const {
  int64_t before = 0;
  for (int64_t i = 0; i <= documents_; ++i) {
    int64_t sequence = at<int64_t>(document_starts_ + 8 * i);
    bool fits = i == 0 ? sequence == 0 : sequence >= before && sequence <= sequences_;
    if (!fits) {
      refuse(concat("starts document ", i, " at sequence ", sequence, " instead of ",
                    i == 0 ? std::string("0") : concat("one from ", before, " to ", sequences_)));
    }
    before = sequence;
  }
  if (before != sequences_) {
    refuse(concat("ends the last document at sequence ", before, " instead of ", sequences_));
  }
}

int64_t TokenIndex::sequence_begin(int64_t i) const {
  if (i == sequences_) return tokens_bytes_ / bytes_of(type_);
  return at<int64_t>(pointers_ + 8 * i) / bytes_of(type_);
}

int64_t TokenIndex::document_begin(int64_t i) const {
  FSDP_CHECK(i >= 0 && i <= documents_, "document ", i, " of ", documents_);
  if (file_.current_size_bytes() < file_.size_bytes()) {
    file_.refuse("has become shorter since it was opened",
                 "do not change it while it is in use, and start again");
  }
  if (format_ == TokenFormat::kFairseq) return sequence_begin(i);
  int64_t sequence = at<int64_t>(document_starts_ + 8 * i);
  // The value was checked on opening, but a file changed since then must not lead outside the mapping.
  if (sequence < 0 || sequence > sequences_) {
    file_.refuse("was changed since it was opened", "do not change it while it is in use, and start again");
  }
  return sequence_begin(sequence);
}

}  // namespace fsdp::data
