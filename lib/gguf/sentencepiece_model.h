#pragma once

// The .model files of SentencePiece: its message ModelProto of protocol buffers
// (https://github.com/google/sentencepiece/blob/master/src/sentencepiece_model.proto), the fields that GGUF has
// too.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp::gguf {

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

  std::vector<Piece> pieces;
  bool bpe = false;          ///< byte pair encoding; otherwise Unigram, the default, or another algorithm
  bool adds_blank = true;    ///< before a text
  bool drops_blanks = true;  ///< at both ends and all but one between words
};

/// kData that names `source` for a text that is no such message.
SentencePieceModel parse_sentencepiece_model(std::string_view bytes, const std::string& source);

}  // namespace fsdp::gguf
