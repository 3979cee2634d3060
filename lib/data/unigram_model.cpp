#include "data/unigram_model.h"

#include <algorithm>
#include <bit>
#include <unordered_set>

#include "data/character_merger.h"
#include "data/utf8.h"
#include "util/error.h"
#include "util/hash.h"

namespace fsdp::data {
namespace {

/// How much less probable than every piece an unknown character is, as in SentencePiece.
constexpr double kUnknownPenalty = 10.0;
constexpr uint64_t kNoKey = UINT64_MAX;

uint64_t key_of(uint32_t node, unsigned char byte) { return uint64_t{node} << 8 | byte; }

}  // namespace

UnigramModel::UnigramModel(const Vocabulary& vocabulary)
    : source_(vocabulary.source),
      nodes_(1),
      byte_fallback_(vocabulary.byte_fallback),
      bytes_(byte_tokens(vocabulary)) {
  if (vocabulary.unknown_id) unknown_ = static_cast<uint32_t>(*vocabulary.unknown_id);
  std::unordered_map<uint64_t, uint32_t> children;
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
      auto [next, added] =
          children.emplace(key_of(node, static_cast<unsigned char>(c)), static_cast<uint32_t>(nodes_.size()));
      if (added) nodes_.emplace_back();
      node = next->second;
    }
    if (node != 0) nodes_[node].id = id;  // of a piece that comes twice the last, as in tokenizers
  }
  unknown_score_ = least - kUnknownPenalty;
  keys_.assign(std::bit_ceil(2 * children.size() + 2), kNoKey);
  children_.resize(keys_.size());
  mask_ = keys_.size() - 1;
  for (const auto& [key, node] : children) {
    size_t i = util::mix64(key) & mask_;
    while (keys_[i] != kNoKey) i = (i + 1) & mask_;
    keys_[i] = key;
    children_[i] = node;
  }
}

uint32_t UnigramModel::child(uint32_t node, unsigned char byte) const {
  const uint64_t key = key_of(node, byte);
  for (size_t i = util::mix64(key) & mask_; keys_[i] != kNoKey; i = (i + 1) & mask_) {
    if (keys_[i] == key) return children_[i];
  }
  return 0;
}

void UnigramModel::encode(std::string_view piece, std::vector<int64_t>& ids) const {
  constexpr size_t kNowhere = SIZE_MAX;
  struct Best {
    double score = 0;
    size_t begin = kNowhere;  // of the piece that ends here
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
      node = child(node, static_cast<unsigned char>(piece[end++]));
      if (node == 0) break;
      if (!nodes_[node].id) continue;
      const uint32_t id = *nodes_[node].id;
      offer(begin, end, so_far + scores_[id], id);
      known = known || end - begin == character;
    }
    if (!known) {
      if (!unknown_) {
        util::fail(util::ErrorKind::kData, "the vocabulary ", source_, " has no token for the character \"",
                   for_message(piece.substr(begin, character)),
                   "\" and none for unknown ones (unk_id); leave ",
                   "the character out or use another tokenizer");
      }
      offer(begin, begin + character, so_far + unknown_score_, *unknown_);
    }
    begin += character;
  }
  std::vector<std::pair<size_t, size_t>> pieces;  // from behind; unknown ones that follow each other are one
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

void UnigramModel::append(std::string_view text, uint32_t id, std::vector<int64_t>& ids) const {
  if (id != unknown_) {
    ids.push_back(id);
    return;
  }
  if (auto found = ids_.find(std::string(text)); found != ids_.end()) {
    ids.push_back(found->second);
    return;
  }
  auto id_of = [this](char byte) { return bytes_[static_cast<unsigned char>(byte)]; };
  if (byte_fallback_ && std::all_of(text.begin(), text.end(), [&](char c) { return id_of(c).has_value(); })) {
    for (char byte : text) ids.push_back(*id_of(byte));
  } else {
    ids.push_back(*unknown_);
  }
}

}  // namespace fsdp::data
