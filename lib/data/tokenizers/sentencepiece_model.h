#pragma once

// The .model files of SentencePiece: its message ModelProto of protocol buffers
// (https://github.com/google/sentencepiece/blob/master/src/sentencepiece_model.proto). libsentencepiece trusts what it
// loads, so a file from anyone is read and checked here, and the library gets a message that is written anew from what
// was read.

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizers/vocabulary.h"

namespace fsdp::data {

struct SentencePieceModel {
  /// The values are SentencePiece's, and those of tokenizer.ggml.token_type.
  enum class Kind : int32_t {
    kNormal = 1,
    kUnknown = 2,
    kControl = 3,
    kUserDefined = 4,
    kUnused = 5,
    kByte = 6,
  };
  struct Piece {
    std::string text;
    float score = 0;
    Kind kind = Kind::kNormal;
  };
  /// The values are SentencePiece's.
  enum class Type : uint64_t { kUnigram = 1, kBpe = 2, kWord = 3, kCharacter = 4 };

  std::vector<Piece> pieces;
  Type type = Type::kUnigram;
  bool byte_fallback = false;
  bool blank_behind_words = false;  ///< treat_whitespace_as_suffix
  std::string unknown_piece = "<unk>", begin_piece = "<s>", end_piece = "</s>", pad_piece = "<pad>";
  std::string character_map;   ///< precompiled_charsmap
  bool adds_blank = true;      ///< before a text
  bool drops_blanks = true;    ///< at both ends and all but one between words
  bool escapes_blanks = true;  ///< writes them as U+2581

  /// The message with these fields alone.
  std::string serialized() const;
};

/// Throws Error(kData) that names `source` for a text that is no such message, and for a model that libsentencepiece
/// would not load or could fail on.
SentencePieceModel parse_sentencepiece_model(std::string_view bytes, const std::string& source);
SentencePieceModel read_sentencepiece_model(const std::filesystem::path& path);

/// The ids of the pieces, and the added tokens and tokens around texts of the files beside the model (companions.h).
/// Its metaspace says, where it has one, that only the beginning of a text gets a blank. Throws Error(kData) where these files and the model contradict each other.
Vocabulary vocabulary_of(const SentencePieceModel& model, const std::filesystem::path& path);

}  // namespace fsdp::data
