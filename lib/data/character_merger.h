#pragma once

// Byte pair encoding over characters, as Llama 2 and Mistral do it: it begins with one token a character, or
// one for each of its bytes where the character is none.

#include <array>
#include <optional>
#include <string>
#include <unordered_map>

#include "data/merge_table.h"
#include "data/piece_model.h"
#include "data/vocabulary.h"

namespace fsdp::data {

/// The tokens <0x00> to <0xFF>, of those that a vocabulary has.
std::array<std::optional<uint32_t>, 256> byte_tokens(const Vocabulary& vocabulary);

class CharacterMerger final : public PieceModel {
 public:
  /// Throws Error(kData) when a merge names or makes what is no token.
  explicit CharacterMerger(const Vocabulary& vocabulary);

  void encode(std::string_view piece, std::vector<int64_t>& ids) const override;

 private:
  std::unordered_map<std::string, uint32_t> characters_;
  std::array<std::optional<uint32_t>, 256> bytes_;
  MergeTable merges_;
  bool byte_fallback_, fuse_unknown_;
  std::optional<int64_t> unknown_;
  std::unordered_map<std::string, uint32_t> whole_pieces_;  ///< with ignore_merges only
};

}  // namespace fsdp::data
