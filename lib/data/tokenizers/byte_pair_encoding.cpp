#include <c10/util/SmallVector.h>
#include <c10/util/flat_hash_map.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <queue>
#include <unordered_map>

#include "base/util/error.h"
#include "base/util/hash.h"
#include "data/tokenizers/piece_model.h"
#include "data/tokenizers/utf8.h"

namespace fsdp::data {
namespace {

/// Returns the id of a token that the vocabulary needs.
uint32_t needed_token(const Vocabulary& vocabulary, const std::string& token) {
  auto found = vocabulary.tokens.find(token);
  if (found == vocabulary.tokens.end()) {
    fail(ErrorKind::kData, "the vocabulary ", vocabulary.source, " has no token \"", for_message(token),
         "\", which it needs; it is damaged or of another kind, so copy it again or ", "use another");
  }
  return static_cast<uint32_t>(found->second);
}

class MergeTable {
 public:
  explicit MergeTable(const Vocabulary& vocabulary) {
    merges_.reserve(vocabulary.merges.size());
    uint32_t rank = 0;
    for (const auto& [left, right] : vocabulary.merges) {
      const uint64_t pair = pair_of(needed_token(vocabulary, left), needed_token(vocabulary, right));
      // A pair that is listed twice has its last rank, as in tokenizers.
      const uint32_t merged = needed_token(vocabulary, left + right);
      merges_[pair] = {vocabulary.ranks_are_ids ? merged : rank, merged};
      ++rank;
    }
  }

  /// Up to this many tokens, as words have, examining all pairs each time is fastest.
  static constexpr size_t kShort = 48;

  /// Merges `count` tokens and appends the ids of the result.
  void merge(const uint32_t* tokens, size_t count, std::vector<int64_t>& ids) const {
    if (count == 0) return;
    if (count <= kShort) {
      merge_short(tokens, count, ids);
    } else {
      merge_long(tokens, count, ids);
    }
  }

 private:
  struct Merge {
    uint32_t rank = 0;  ///< lower ranks are merged first
    uint32_t id = 0;    ///< id of the merged token
  };

  static uint64_t pair_of(uint32_t left, uint32_t right) { return uint64_t{left} << 32 | right; }

  const Merge* find(uint32_t left, uint32_t right) const {
    const auto found = merges_.find(pair_of(left, right));
    return found == merges_.end() ? nullptr : &found->second;
  }

  void merge_short(const uint32_t* tokens, size_t count, std::vector<int64_t>& ids) const {
    constexpr uint32_t kNoRank = UINT32_MAX;
    struct Symbol {
      uint32_t id;
      uint32_t rank;       // rank of the merge with the next symbol
      uint32_t merged_id;  // id of the result of that merge
    };
    std::array<Symbol, kShort> symbols;
    auto look_up = [&](size_t i) {
      const Merge* merge = i + 1 < count ? find(symbols[i].id, symbols[i + 1].id) : nullptr;
      symbols[i].rank = merge ? merge->rank : kNoRank;
      symbols[i].merged_id = merge ? merge->id : 0;
    };
    for (size_t i = 0; i < count; ++i) symbols[i].id = tokens[i];
    for (size_t i = 0; i < count; ++i) look_up(i);
    while (true) {
      size_t best = 0;
      for (size_t i = 1; i < count; ++i) {
        if (symbols[i].rank < symbols[best].rank) best = i;
      }
      if (symbols[best].rank == kNoRank) break;
      symbols[best].id = symbols[best].merged_id;
      std::memmove(&symbols[best + 1], &symbols[best + 2], (count - best - 2) * sizeof(Symbol));
      --count;
      look_up(best);
      if (best > 0) look_up(best - 1);
    }
    for (size_t i = 0; i < count; ++i) ids.push_back(symbols[i].id);
  }

  /// Merges by a priority queue of pairs, in n log n time.
  void merge_long(const uint32_t* tokens, size_t count, std::vector<int64_t>& ids) const {
    constexpr size_t kNone = SIZE_MAX;
    struct Symbol {
      uint32_t id;
      size_t before, after;
      bool there = true;
    };
    struct Candidate {
      uint32_t rank;
      size_t place;
      uint32_t left, right, merged;
      bool operator>(const Candidate& other) const {
        return rank != other.rank ? rank > other.rank : place > other.place;
      }
    };
    std::vector<Symbol> symbols(count);
    std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue;
    auto look_up = [&](size_t i) {
      if (i == kNone || symbols[i].after == kNone) return;
      uint32_t left = symbols[i].id, right = symbols[symbols[i].after].id;
      if (const Merge* merge = find(left, right)) queue.push({merge->rank, i, left, right, merge->id});
    };
    for (size_t i = 0; i < count; ++i) {
      symbols[i] = {tokens[i], i == 0 ? kNone : i - 1, i + 1 == count ? kNone : i + 1};
    }
    for (size_t i = 0; i < count; ++i) look_up(i);
    while (!queue.empty()) {
      Candidate best = queue.top();
      queue.pop();
      Symbol& symbol = symbols[best.place];
      // One of the two symbols has been merged otherwise meanwhile.
      if (!symbol.there || symbol.id != best.left || symbol.after == kNone ||
          symbols[symbol.after].id != best.right) {
        continue;
      }
      Symbol& gone = symbols[symbol.after];
      gone.there = false;
      symbol.id = best.merged;
      symbol.after = gone.after;
      if (symbol.after != kNone) symbols[symbol.after].before = best.place;
      look_up(symbol.before);
      look_up(best.place);
    }
    for (size_t i = 0; i != kNone; i = symbols[i].after) ids.push_back(symbols[i].id);
  }

  ska::flat_hash_map<uint64_t, Merge> merges_;
};

class ByteLevelBpe {
 public:
  explicit ByteLevelBpe(const Vocabulary& vocabulary)
      : merges_(vocabulary), fuse_unknown_(vocabulary.fuse_unknown) {
    if (vocabulary.unknown_id) unknown_ = static_cast<uint32_t>(*vocabulary.unknown_id);
    for (size_t byte = 0; byte < byte_ids_.size(); ++byte) {
      const auto found = vocabulary.tokens.find(byte_symbol(static_cast<unsigned char>(byte)));
      byte_ids_[byte] = found == vocabulary.tokens.end() ? kNone : static_cast<uint32_t>(found->second);
    }
    for (const auto& [token, id] : vocabulary.tokens) {
      auto bytes = vocabulary.ignore_merges ? symbols_to_bytes(token) : std::nullopt;
      if (bytes) whole_pieces_.emplace(std::move(*bytes), static_cast<uint32_t>(id));
    }
  }

  void encode(std::string_view piece, std::vector<int64_t>& ids) const {
    auto id_of = [this](char byte) { return byte_ids_[static_cast<unsigned char>(byte)]; };
    if (piece.size() == 1 && id_of(piece[0]) != kNone) {
      ids.push_back(id_of(piece[0]));
      return;
    }
    if (!whole_pieces_.empty()) {
      if (auto found = whole_pieces_.find(std::string(piece)); found != whole_pieces_.end()) {
        ids.push_back(found->second);
        return;
      }
    }
    c10::SmallVector<uint32_t, MergeTable::kShort> tokens;
    bool unknown_before = false;
    for (const char byte : piece) {
      const uint32_t id = id_of(byte);
      const bool is_unknown = id == kNone;
      if (!is_unknown) {
        tokens.push_back(id);
      } else if (unknown_ && !(unknown_before && fuse_unknown_)) {
        tokens.push_back(*unknown_);
      }
      unknown_before = is_unknown;
    }
    merges_.merge(tokens.data(), tokens.size(), ids);
  }

 private:
  static constexpr uint32_t kNone = UINT32_MAX;

  std::array<uint32_t, 256> byte_ids_{};
  MergeTable merges_;
  std::optional<uint32_t> unknown_;
  bool fuse_unknown_;
  /// Ids of whole pieces by their bytes, with ignore_merges only.
  std::unordered_map<std::string, uint32_t> whole_pieces_;
};

class CharacterBpe {
 public:
  explicit CharacterBpe(const Vocabulary& vocabulary)
      : bytes_(byte_tokens(vocabulary)),
        merges_(vocabulary),
        byte_fallback_(vocabulary.byte_fallback),
        fuse_unknown_(vocabulary.fuse_unknown),
        unknown_(vocabulary.unknown_id) {
    for (const auto& [token, id] : vocabulary.tokens) {
      const bool one = !token.empty() && valid_utf8_prefix(token) == token.size() &&
                       first_code_point(token).bytes == token.size();
      if (one) characters_.emplace(token, static_cast<uint32_t>(id));
      if (vocabulary.ignore_merges) whole_pieces_.emplace(token, static_cast<uint32_t>(id));
    }
  }

  void encode(std::string_view piece, std::vector<int64_t>& ids) const {
    if (auto whole = whole_pieces_.find(std::string(piece)); whole != whole_pieces_.end()) {
      ids.push_back(whole->second);
      return;
    }
    std::vector<uint32_t> tokens;
    bool unknown_waits = false;
    auto end_unknown = [&] {
      if (unknown_waits) tokens.push_back(static_cast<uint32_t>(*unknown_));
      unknown_waits = false;
    };
    std::string character;
    while (!piece.empty()) {
      character = piece.substr(0, first_code_point(piece).bytes);
      piece.remove_prefix(character.size());
      if (auto found = characters_.find(character); found != characters_.end()) {
        end_unknown();
        tokens.push_back(found->second);
        continue;
      }
      auto id_of = [this](char byte) { return bytes_[static_cast<unsigned char>(byte)]; };
      if (byte_fallback_ && std::all_of(character.begin(), character.end(),
                                        [&](char byte) { return id_of(byte).has_value(); })) {
        // An unknown character before these bytes gets its token after them, as in tokenizers.
        for (char byte : character) tokens.push_back(*id_of(byte));
      } else if (unknown_) {
        if (!fuse_unknown_) end_unknown();
        unknown_waits = true;
      }
    }
    end_unknown();
    merges_.merge(tokens.data(), tokens.size(), ids);
  }

 private:
  std::unordered_map<std::string, uint32_t> characters_;
  std::array<std::optional<uint32_t>, 256> bytes_;
  MergeTable merges_;
  bool byte_fallback_, fuse_unknown_;
  std::optional<int64_t> unknown_;
  std::unordered_map<std::string, uint32_t> whole_pieces_;  ///< ids of whole pieces, with ignore_merges only
};

struct Tables {
  std::array<std::string, 256> symbols;
  std::array<int, 512> bytes;

  Tables() {
    bytes.fill(-1);
    uint32_t next = 0x100;
    for (uint32_t byte = 0; byte < 256; ++byte) {
      bool printable = (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
      uint32_t code_point = printable ? byte : next++;
      append_utf8(symbols[byte], code_point);
      bytes[code_point] = static_cast<int>(byte);
    }
  }
};

const Tables& tables() {
  static const Tables tables;
  return tables;
}

template <typename Model>
PieceModel shared(const Vocabulary& vocabulary) {
  return [model = std::make_shared<const Model>(vocabulary)](
             std::string_view piece, std::vector<int64_t>& ids) { model->encode(piece, ids); };
}

}  // namespace

PieceModel make_byte_level_bpe(const Vocabulary& vocabulary) { return shared<ByteLevelBpe>(vocabulary); }

PieceModel make_character_bpe(const Vocabulary& vocabulary) { return shared<CharacterBpe>(vocabulary); }

const std::string& byte_symbol(unsigned char byte) { return tables().symbols[byte]; }

std::optional<std::string> symbols_to_bytes(std::string_view token) {
  std::string bytes;
  if (valid_utf8_prefix(token) != token.size()) return std::nullopt;
  while (!token.empty()) {
    CodePoint symbol = first_code_point(token);
    if (symbol.value >= tables().bytes.size() || tables().bytes[symbol.value] < 0) return std::nullopt;
    bytes.push_back(static_cast<char>(tables().bytes[symbol.value]));
    token.remove_prefix(symbol.bytes);
  }
  return bytes;
}

std::array<std::optional<uint32_t>, 256> byte_tokens(const Vocabulary& vocabulary) {
  constexpr std::string_view kHex = "0123456789ABCDEF";
  std::array<std::optional<uint32_t>, 256> ids;
  for (size_t byte = 0; byte < ids.size(); ++byte) {
    auto found = vocabulary.tokens.find(std::string("<0x") + kHex[byte >> 4] + kHex[byte & 15] + '>');
    if (found != vocabulary.tokens.end()) ids[byte] = static_cast<uint32_t>(found->second);
  }
  return ids;
}

void PieceCache::encode(const PieceModel& model, std::string_view piece, std::vector<int64_t>& ids) {
  if (piece.size() > kPieceBytes) return model(piece, ids);
  CachedPiece& entry = entries_[util::xxh3_64(piece.data(), piece.size()) % kEntries];
  if (std::string_view(entry.piece.data(), entry.bytes) == piece) {
    ids.insert(ids.end(), entry.ids.begin(), entry.ids.begin() + entry.count);
    return;
  }
  const size_t before = ids.size();
  model(piece, ids);
  if (ids.size() - before > entry.ids.size()) return;
  std::copy(piece.begin(), piece.end(), entry.piece.begin());
  entry.bytes = static_cast<uint8_t>(piece.size());
  entry.count = static_cast<uint8_t>(ids.size() - before);
  std::transform(ids.begin() + static_cast<int64_t>(before), ids.end(), entry.ids.begin(),
                 [](int64_t id) { return static_cast<uint32_t>(id); });
}

}  // namespace fsdp::data
