#pragma once

// The .model files of SentencePiece: its protocol buffer message ModelProto
// (https://github.com/google/sentencepiece/blob/master/src/sentencepiece_model.proto). libsentencepiece
// trusts the files that it loads, so an untrusted file is read and checked here, and the library gets a
// message that is written anew from the parsed fields.

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizers/vocabulary.h"

namespace fsdp::data {

struct SentencePieceModel {
  /// Kind of a piece. The values are SentencePiece's, and those of tokenizer.ggml.token_type.
  enum class PieceKind : int32_t {
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
    PieceKind kind = PieceKind::kNormal;
  };
  /// Type of the model. The values are SentencePiece's.
  enum class Type : uint64_t { kUnigram = 1, kBpe = 2, kWord = 3, kCharacter = 4 };

  std::vector<Piece> pieces;
  Type type = Type::kUnigram;
  bool byte_fallback = false;
  bool blank_behind_words = false;  ///< treat_whitespace_as_suffix
  std::string unknown_piece = "<unk>", begin_piece = "<s>", end_piece = "</s>", pad_piece = "<pad>";
  std::string character_map;   ///< precompiled_charsmap
  bool adds_blank = true;      ///< whether a blank is added before a text
  bool drops_blanks = true;    ///< whether blanks are dropped at both ends, and all but one between words
  bool escapes_blanks = true;  ///< whether blanks are written as U+2581

  /// Returns the message with these fields alone.
  std::string serialized() const;
};

/// Parses and checks a model; `source` is its name in messages. Throws Error(kData) for a text that is not
/// such a message, and for a model that libsentencepiece would refuse or could crash on.
SentencePieceModel parse_sentencepiece_model(std::string_view bytes, const std::string& source);
SentencePieceModel read_sentencepiece_model(const std::filesystem::path& path);

/// Returns the ids of the pieces, and the added tokens and the tokens around texts from the files beside the
/// model (companions.h). The vocabulary has a metaspace if only the beginning of a text gets a blank. Throws
/// Error(kData) if these files and the model contradict each other.
Vocabulary vocabulary_of(const SentencePieceModel& model, const std::filesystem::path& path);

}  // namespace fsdp::data
