#pragma once

// The most probable sequence of pieces (Kudo: Subword regularization, ACL 2018), by Viterbi's algorithm.

#include <array>
#include <optional>
#include <string>
#include <unordered_map>

#include "data/piece_model.h"
#include "data/vocabulary.h"

namespace fsdp::data {

class UnigramModel final : public PieceModel {
 public:
  explicit UnigramModel(const Vocabulary& vocabulary);

  /// Throws Error(kData) for a character that no piece has, when the vocabulary has no token for those.
  void encode(std::string_view piece, std::vector<int64_t>& ids) const override;

 private:
  struct Node {
    std::optional<uint32_t> id;  ///< of the piece that ends here
  };
  /// The node behind `byte`; 0 when there is none.
  uint32_t child(uint32_t node, unsigned char byte) const;
  void append(std::string_view text, uint32_t id, std::vector<int64_t>& ids) const;

  std::string source_;
  std::unordered_map<std::string, uint32_t> ids_;
  std::vector<double> scores_;      ///< by id
  std::vector<Node> nodes_;         ///< of the trie of all pieces
  std::vector<uint64_t> keys_;      ///< a hash table with open addressing: node and byte, ...
  std::vector<uint32_t> children_;  ///< ... and the child
  size_t mask_ = 0;
  double unknown_score_ = 0;
  bool byte_fallback_;
  std::optional<uint32_t> unknown_;
  std::array<std::optional<uint32_t>, 256> bytes_;
};

}  // namespace fsdp::data
