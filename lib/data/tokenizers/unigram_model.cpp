#include <c10/util/flat_hash_map.h>

#include <algorithm>
#include <memory>
#include <unordered_map>
#include <unordered_set>

#include "base/util/error.h"
#include "data/tokenizers/piece_model.h"
#include "data/tokenizers/utf8.h"

namespace fsdp::data {
namespace {

/// Difference between the lowest score of a piece and the score of an unknown character, as in SentencePiece.
constexpr double kUnknownPenalty = 10.0;

class UnigramModel {
 public:
  explicit UnigramModel(const Vocabulary& vocabulary)
      : source_(vocabulary.source),
        byte_fallback_(vocabulary.byte_fallback),
        bytes_(byte_tokens(vocabulary)) {
    if (vocabulary.unknown_id) unknown_ = static_cast<uint32_t>(*vocabulary.unknown_id);
    std::unordered_set<std::string> special;
    for (const auto& token : vocabulary.added) {
      if (token.special) special.insert(token.content);
    }
    double least = 0;
    for (const auto& [piece, score] : vocabulary.pieces) {
      const auto id = static_cast<uint32_t>(scores_.size());
      scores_.push_back(score);
      least = id == 0 ? score : std::min(least, score);
      ids_[piece] = id;
      if (vocabulary.split_special_tokens && special.contains(piece)) continue;
      uint32_t node = 0;
      for (char c : piece) {
        auto [next, added] = children_.emplace(key_of(node, c), static_cast<uint32_t>(piece_at_.size()));
        if (added) piece_at_.emplace_back();
        node = next->second;
      }
      if (node != 0) piece_at_[node] = id;  // the last of equal pieces counts, as in tokenizers
    }
    unknown_score_ = least - kUnknownPenalty;
  }

  void encode(std::string_view piece, std::vector<int64_t>& ids) const {
    constexpr size_t kNowhere = SIZE_MAX;
    struct Best {
      double score = 0;
      size_t begin = kNowhere;  // beginning of the piece that ends here
      uint32_t id = 0;
    };
    std::vector<Best> best(piece.size() + 1);
    auto offer = [&](size_t begin, size_t end, double score, uint32_t id) {
      if (best[end].begin == kNowhere || score > best[end].score) best[end] = {score, begin, id};
    };
    for (size_t begin = 0; begin < piece.size();) {
      const size_t character = first_code_point(piece.substr(begin)).bytes;
      const double so_far = best[begin].score;
      bool known = false;
      uint32_t node = 0;
      for (size_t end = begin; end < piece.size();) {
        const auto next = children_.find(key_of(node, piece[end++]));
        if (next == children_.end()) break;
        node = next->second;
        if (!piece_at_[node]) continue;
        const uint32_t id = *piece_at_[node];
        offer(begin, end, so_far + scores_[id], id);
        known = known || end - begin == character;
      }
      if (!known) {
        if (!unknown_) {
          fail(ErrorKind::kData, "the vocabulary ", source_, " has no token for the character \"",
               for_message(piece.substr(begin, character)), "\" and none for unknown ones (unk_id); leave ",
               "the character out or use another tokenizer");
        }
        offer(begin, begin + character, so_far + unknown_score_, *unknown_);
      }
      begin += character;
    }
    std::vector<std::pair<size_t, size_t>> pieces;  // pieces from the end; consecutive unknown pieces are one
    bool unknown_before = false;
    for (size_t end = piece.size(); end > 0; end = best[end].begin) {
      if (best[end].id == unknown_ && unknown_before) {
        pieces.back().first = best[end].begin;
      } else {
        pieces.emplace_back(best[end].begin, end);
      }
      unknown_before = best[end].id == unknown_;
    }
    std::reverse(pieces.begin(), pieces.end());
    for (auto [begin, end] : pieces) append(piece.substr(begin, end - begin), best[end].id, ids);
  }

 private:
  static uint64_t key_of(uint32_t node, char byte) {
    return uint64_t{node} << 8 | static_cast<unsigned char>(byte);
  }

  void append(std::string_view text, uint32_t id, std::vector<int64_t>& ids) const {
    if (id != unknown_) {
      ids.push_back(id);
      return;
    }
    if (auto found = ids_.find(std::string(text)); found != ids_.end()) {
      ids.push_back(found->second);
      return;
    }
    auto id_of = [this](char byte) { return bytes_[static_cast<unsigned char>(byte)]; };
    if (byte_fallback_ &&
        std::all_of(text.begin(), text.end(), [&](char c) { return id_of(c).has_value(); })) {
      for (char byte : text) ids.push_back(*id_of(byte));
    } else {
      ids.push_back(*unknown_);
    }
  }

  std::string source_;
  std::unordered_map<std::string, uint32_t> ids_;
  std::vector<double> scores_;  ///< scores by id
  // A trie of all pieces; its root is node 0.
  std::vector<std::optional<uint32_t>> piece_at_ = {std::nullopt};  ///< piece that ends at each node: [node]
  ska::flat_hash_map<uint64_t, uint32_t> children_;                 ///< children by node and byte
  double unknown_score_ = 0;
  bool byte_fallback_;
  std::optional<uint32_t> unknown_;
  std::array<std::optional<uint32_t>, 256> bytes_;
};

}  // namespace

PieceModel make_unigram(const Vocabulary& vocabulary) {
  return [model = std::make_shared<const UnigramModel>(vocabulary)](
             std::string_view piece, std::vector<int64_t>& ids) { model->encode(piece, ids); };
}

}  // namespace fsdp::data
