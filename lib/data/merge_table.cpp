#include "data/merge_table.h"

#include <bit>
#include <cstring>
#include <queue>

#include "data/utf8.h"
#include "util/error.h"
#include "util/hash.h"

namespace fsdp::data {
namespace {

constexpr size_t kShort = 48;

}  // namespace

PieceCache::Entry& PieceCache::entry_of(std::string_view piece) {
  return entries_[util::xxh3_64(piece.data(), piece.size()) % kEntries];
}

bool PieceCache::holds(const Entry& entry, std::string_view piece) {
  return entry.bytes == piece.size() && std::memcmp(entry.piece.data(), piece.data(), piece.size()) == 0;
}

void PieceCache::keep(Entry& entry, std::string_view piece, const std::vector<int64_t>& ids, size_t before) {
  if (ids.size() - before > entry.ids.size()) return;
  std::memcpy(entry.piece.data(), piece.data(), piece.size());
  entry.bytes = static_cast<uint8_t>(piece.size());
  entry.count = static_cast<uint8_t>(ids.size() - before);
  for (size_t i = 0; i < entry.count; ++i) entry.ids[i] = static_cast<uint32_t>(ids[before + i]);
}

uint32_t needed_token(const Vocabulary& vocabulary, const std::string& token) {
  auto found = vocabulary.tokens.find(token);
  if (found == vocabulary.tokens.end()) {
    util::fail(util::ErrorKind::kData, "the vocabulary ", vocabulary.source, " has no token \"",
               for_message(token),
               "\", which it needs; it is damaged or of another kind, so copy it anew or ", "use another");
  }
  return static_cast<uint32_t>(found->second);
}

MergeTable::MergeTable(const Vocabulary& vocabulary) {
  merges_.resize(std::bit_ceil(2 * vocabulary.merges.size() + 2));
  mask_ = merges_.size() - 1;
  uint32_t rank = 0;
  for (const auto& [left, right] : vocabulary.merges) {
    insert({pair_of(needed_token(vocabulary, left), needed_token(vocabulary, right)), rank++,
            needed_token(vocabulary, left + right)});
  }
}

void MergeTable::insert(const Merge& merge) {
  size_t i = util::mix64(merge.pair) & mask_;
  // A pair that is listed twice has its last rank, as in tokenizers.
  while (merges_[i].pair != kNoPair && merges_[i].pair != merge.pair) i = (i + 1) & mask_;
  merges_[i] = merge;
}

const MergeTable::Merge* MergeTable::find(uint32_t left, uint32_t right) const {
  uint64_t pair = pair_of(left, right);
  for (size_t i = util::mix64(pair) & mask_;; i = (i + 1) & mask_) {
    if (merges_[i].pair == pair) return &merges_[i];
    if (merges_[i].pair == kNoPair) return nullptr;
  }
}

void MergeTable::merge(const uint32_t* tokens, size_t count, std::vector<int64_t>& ids) const {
  if (count == 0) return;
  if (count <= kShort) {
    merge_short(tokens, count, ids);
  } else {
    merge_long(tokens, count, ids);
  }
}

void MergeTable::merge_short(const uint32_t* tokens, size_t count, std::vector<int64_t>& ids) const {
  constexpr uint32_t kNoRank = UINT32_MAX;
  struct Symbol {
    uint32_t id;
    uint32_t rank;       // of the merge with the next symbol
    uint32_t merged_id;  // what that merge makes
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

void MergeTable::merge_long(const uint32_t* tokens, size_t count, std::vector<int64_t>& ids) const {
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
    // Overtaken by another merge of one of the two.
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

}  // namespace fsdp::data
