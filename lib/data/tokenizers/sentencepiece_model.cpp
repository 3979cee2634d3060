#include "data/tokenizers/sentencepiece_model.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <functional>
#include <optional>
#include <unordered_set>

#include "base/util/error.h"
#include "data/tokenizers/character_map.h"
#include "data/tokenizers/companions.h"
#include "data/tokenizers/utf8.h"
#include "data/tokenizers/vocabulary_reader.h"

namespace fsdp::data {

namespace {

using PieceKind = SentencePieceModel::PieceKind;

/// Limit on a piece's bytes, above every existing piece's. The library examines so much at each position.
constexpr size_t kMostPieceBytes = 1024;

[[noreturn]] void refuse_model(const std::string& source, const std::string& found) {
  fail(ErrorKind::kData, "the tokenizer ", source, " is not a SentencePiece model: ", found,
       "; give the .model that SentencePiece or fsdp-data train-tokenizer wrote, or copy it again");
}

/// A field of a protocol buffer message.
struct MessageField {
  uint32_t number = 0;
  uint64_t value = 0;     ///< value of a number
  std::string_view text;  ///< content of a text or message
};

/// Reads the fields of a message in the order of its bytes.
class MessageReader {
 public:
  MessageReader(std::string_view bytes, const std::string& source) : bytes_(bytes), source_(source) {}

  /// Reads the next field. Returns false at the end.
  bool next(MessageField& field) {
    if (bytes_.empty()) return false;
    const uint64_t tag = varint();
    field = MessageField();
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
        refuse_model(source_, "its fields are cut off or unknown");
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
    refuse_model(source_, "its fields are cut off or unknown");
  }
  std::string_view take(uint64_t count) {
    if (count > bytes_.size()) refuse_model(source_, "its fields are cut off or unknown");
    const std::string_view taken = bytes_.substr(0, count);
    bytes_.remove_prefix(count);
    return taken;
  }

  std::string_view bytes_;
  const std::string& source_;
};

void for_fields(std::string_view bytes, const std::string& source,
                const std::function<void(const MessageField&)>& on_field) {
  MessageReader reader(bytes, source);
  for (MessageField field; reader.next(field);) on_field(field);
}

class MessageWriter {
 public:
  void number(uint32_t field, uint64_t value) {
    varint(field << 3);
    varint(value);
  }
  void real(uint32_t field, float value) {
    varint(field << 3 | 5);
    out_.append(reinterpret_cast<const char*>(&value), sizeof(value));
  }
  void text(uint32_t field, std::string_view value) {
    varint(field << 3 | 2);
    varint(value.size());
    out_ += value;
  }
  std::string take() { return std::move(out_); }

 private:
  void varint(uint64_t value) {
    for (; value >= 0x80; value >>= 7) out_.push_back(static_cast<char>(value | 0x80));
    out_.push_back(static_cast<char>(value));
  }
  std::string out_;
};

SentencePieceModel::Piece piece_of(std::string_view message, const std::string& source) {
  SentencePieceModel::Piece piece;
  for_fields(message, source, [&](const MessageField& field) {
    if (field.number == 1) piece.text = field.text;
    if (field.number == 2) std::memcpy(&piece.score, &field.value, sizeof(piece.score));
    if (field.number == 3 && field.value >= 1 && field.value <= 6)
      piece.kind = static_cast<PieceKind>(field.value);
  });
  return piece;
}

void read_training(std::string_view message, const std::string& source, SentencePieceModel& model) {
  for_fields(message, source, [&](const MessageField& field) {
    switch (field.number) {
      case 3:
        if (field.value < 1 || field.value > 4)
          refuse_model(source, concat("it has the model type ", field.value));
        model.type = static_cast<SentencePieceModel::Type>(field.value);
        break;
      case 24:
        model.blank_behind_words = field.value != 0;
        break;
      case 35:
        model.byte_fallback = field.value != 0;
        break;
      case 45:
        model.unknown_piece = field.text;
        break;
      case 46:
        model.begin_piece = field.text;
        break;
      case 47:
        model.end_piece = field.text;
        break;
      case 48:
        model.pad_piece = field.text;
        break;
      default:
        break;
    }
  });
}

void read_normalization(std::string_view message, const std::string& source, SentencePieceModel& model) {
  for_fields(message, source, [&](const MessageField& field) {
    if (field.number == 2) model.character_map = field.text;
    if (field.number == 3) model.adds_blank = field.value != 0;
    if (field.number == 4) model.drops_blanks = field.value != 0;
    if (field.number == 5) model.escapes_blanks = field.value != 0;
  });
}

/// Returns the byte that a piece such as "<0x0A>" represents; nothing for other pieces.
std::optional<size_t> byte_of_piece(std::string_view piece) {
  constexpr std::string_view kHex = "0123456789ABCDEF";
  if (piece.size() != 6 || !piece.starts_with("<0x") || !piece.ends_with('>')) return std::nullopt;
  const size_t high = kHex.find(piece[3]), low = kHex.find(piece[4]);
  if (high == kHex.npos || low == kHex.npos) return std::nullopt;
  return high * 16 + low;
}

void check_model(const SentencePieceModel& model, const std::string& source) {
  if (model.pieces.empty()) refuse_model(source, "it has no pieces");
  std::unordered_set<std::string_view> texts, reserved_texts;
  std::array<bool, 256> bytes{};
  int64_t unknown = 0;
  for (const SentencePieceModel::Piece& piece : model.pieces) {
    const std::string name = concat("its piece \"", for_message(piece.text), "\" ");
    if (piece.text.empty()) refuse_model(source, "it has an empty piece");
    if (piece.text.size() > kMostPieceBytes) {
      refuse_model(source, concat(name, "has ", piece.text.size(), " bytes, more than ", kMostPieceBytes));
    }
    if (piece.text.find('\0') != std::string::npos || valid_utf8_prefix(piece.text) != piece.text.size()) {
      refuse_model(source, name + "is not UTF-8 without zeros");
    }
    if (!std::isfinite(piece.score)) refuse_model(source, name + "has a score that is not a number");
    const bool is_text = piece.kind == PieceKind::kNormal || piece.kind == PieceKind::kUserDefined ||
                         piece.kind == PieceKind::kUnused;
    if (!(is_text ? texts : reserved_texts).insert(piece.text).second) {
      refuse_model(source, name + "occurs twice");
    }
    unknown += piece.kind == PieceKind::kUnknown ? 1 : 0;
    if (piece.kind != PieceKind::kByte) continue;
    const auto byte = byte_of_piece(piece.text);
    if (!byte || !model.byte_fallback)
      refuse_model(source, name + "is not one of the bytes that it falls back to");
    bytes[*byte] = true;
  }
  if (unknown != 1) refuse_model(source, concat("it has ", unknown, " pieces for unknown characters"));
  if (model.byte_fallback && std::find(bytes.begin(), bytes.end(), false) != bytes.end()) {
    refuse_model(source, "it falls back to bytes and does not have all of them");
  }
  if (!model.character_map.empty() && !CharacterMap::of(model.character_map)) {
    refuse_model(source, "its map of characters (precompiled_charsmap) is damaged");
  }
}

}  // namespace

SentencePieceModel parse_sentencepiece_model(std::string_view bytes, const std::string& source) {
  SentencePieceModel model;
  for_fields(bytes, source, [&](const MessageField& part) {
    if (part.number == 1) model.pieces.push_back(piece_of(part.text, source));
    if (part.number == 2) read_training(part.text, source, model);
    if (part.number == 3) read_normalization(part.text, source, model);
  });
  check_model(model, source);
  return model;
}

SentencePieceModel read_sentencepiece_model(const std::filesystem::path& path) {
  return parse_sentencepiece_model(read_vocabulary_file(path), path.string());
}

std::string SentencePieceModel::serialized() const {
  MessageWriter out;
  for (const Piece& piece : pieces) {
    MessageWriter message;
    message.text(1, piece.text);
    message.real(2, piece.score);
    message.number(3, static_cast<uint64_t>(piece.kind));
    out.text(1, message.take());
  }
  MessageWriter training;
  training.number(3, static_cast<uint64_t>(type));
  training.number(24, blank_behind_words ? 1 : 0);
  training.number(35, byte_fallback ? 1 : 0);
  training.text(45, unknown_piece);
  training.text(46, begin_piece);
  training.text(47, end_piece);
  training.text(48, pad_piece);
  out.text(2, training.take());
  MessageWriter normalization;
  if (!character_map.empty()) normalization.text(2, character_map);
  normalization.number(3, adds_blank ? 1 : 0);
  normalization.number(4, drops_blanks ? 1 : 0);
  normalization.number(5, escapes_blanks ? 1 : 0);
  out.text(3, normalization.take());
  return out.take();
}

Vocabulary vocabulary_of(const SentencePieceModel& model, const std::filesystem::path& path) {
  Vocabulary vocabulary;
  vocabulary.source = path.string();
  for (size_t id = 0; id < model.pieces.size(); ++id) {
    vocabulary.tokens.emplace(model.pieces[id].text, static_cast<int64_t>(id));
  }
  Companions companions = read_companions(path.parent_path());
  if (companions.config.is_object() && !companions.adds_begin) {
    // The classes of transformers that read such models add it by default.
    const nlohmann::json& name = VocabularyReader::at(companions.config, "tokenizer_class");
    const std::string type = name.is_string() ? name.get<std::string>() : "";
    if (type.starts_with("LlamaTokenizer") || type.starts_with("GemmaTokenizer"))
      companions.adds_begin = true;
  }
  if (companions.config.is_object() && VocabularyReader::at(companions.config, "legacy") == false) {
    Vocabulary::Metaspace metaspace;
    metaspace.prepend = Vocabulary::Metaspace::Prepend::kFirst;
    vocabulary.metaspace = std::move(metaspace);
  }
  add_companions(companions, vocabulary);
  return vocabulary;
}

}  // namespace fsdp::data
