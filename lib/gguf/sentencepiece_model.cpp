#include "gguf/sentencepiece_model.h"

#include <cstring>
#include <functional>

#include "util/error.h"

namespace fsdp::gguf {

namespace {

/// Fields of a message, in the order of its bytes.
struct Field {
  uint32_t number = 0;
  uint64_t value = 0;     ///< of numbers
  std::string_view text;  ///< of texts and messages
};

class MessageReader {
 public:
  MessageReader(std::string_view bytes, const std::string& source) : bytes_(bytes), source_(source) {}

  /// False at the end.
  bool next(Field& field) {
    if (bytes_.empty()) return false;
    const uint64_t tag = varint();
    field = Field();
    field.number = static_cast<uint32_t>(tag >> 3);
    switch (tag & 7) {
      case 0:
        field.value = varint();
        return true;
      case 1:
        std::memcpy(&field.value, take(8).data(), 8);
        return true;
      case 2:
        field.text = take(varint());
        return true;
      case 5:
        std::memcpy(&field.value, take(4).data(), 4);
        return true;
      default:
        damaged();
    }
  }

 private:
  uint64_t varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const auto byte = static_cast<unsigned char>(take(1)[0]);
      value |= static_cast<uint64_t>(byte & 0x7f) << shift;
      if (byte < 0x80) return value;
    }
    damaged();
  }
  std::string_view take(uint64_t count) {
    if (count > bytes_.size()) damaged();
    const std::string_view taken = bytes_.substr(0, count);
    bytes_.remove_prefix(count);
    return taken;
  }
  [[noreturn]] void damaged() const {
    util::fail(util::ErrorKind::kData, "the tokenizer ", source_,
               " is not a SentencePiece model: its fields are cut off or unknown; copy it again");
  }

  std::string_view bytes_;
  const std::string& source_;
};

void for_fields(std::string_view bytes, const std::string& source,
                const std::function<void(const Field&)>& on_field) {
  MessageReader reader(bytes, source);
  for (Field field; reader.next(field);) on_field(field);
}

}  // namespace

SentencePieceModel parse_sentencepiece_model(std::string_view bytes, const std::string& source) {
  SentencePieceModel model;
  for_fields(bytes, source, [&](const Field& part) {
    if (part.number == 1) {
      SentencePieceModel::Piece& piece = model.pieces.emplace_back();
      for_fields(part.text, source, [&](const Field& field) {
        if (field.number == 1) piece.text = field.text;
        if (field.number == 2) std::memcpy(&piece.score, &field.value, sizeof(piece.score));
        if (field.number == 3 && field.value >= 1 && field.value <= 6) {
          piece.kind = static_cast<SentencePieceModel::Kind>(field.value);
        }
      });
    } else if (part.number == 2) {  // how it was trained
      for_fields(part.text, source, [&](const Field& field) {
        constexpr uint64_t kBpe = 2;
        if (field.number == 3) model.bpe = field.value == kBpe;
      });
    } else if (part.number == 3) {  // how texts are normalized
      for_fields(part.text, source, [&](const Field& field) {
        if (field.number == 3) model.adds_blank = field.value != 0;
        if (field.number == 4) model.drops_blanks = field.value != 0;
      });
    }
  });
  return model;
}

}  // namespace fsdp::gguf
