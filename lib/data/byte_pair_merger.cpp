#include "data/byte_pair_merger.h"

#include "data/byte_level.h"

namespace fsdp::data {
namespace {

/// Words, which need no memory from the system.
constexpr size_t kShortBytes = 48;

}  // namespace

BytePairMerger::BytePairMerger(const Vocabulary& vocabulary)
    : merges_(vocabulary), ignore_merges_(vocabulary.ignore_merges) {
  for (size_t byte = 0; byte < 256; ++byte) {
    byte_ids_[byte] = needed_token(vocabulary, byte_symbol(static_cast<unsigned char>(byte)));
  }
  if (!ignore_merges_) return;
  for (const auto& [token, id] : vocabulary.tokens) {
    if (auto bytes = symbols_to_bytes(token)) whole_pieces_.emplace(*bytes, static_cast<uint32_t>(id));
  }
}

void BytePairMerger::encode(std::string_view piece, PieceCache& cache, std::vector<int64_t>& ids) const {
  if (piece.size() == 1) {
    ids.push_back(byte_ids_[static_cast<unsigned char>(piece[0])]);
    return;
  }
  cache.encode(piece, ids,
               [this](std::string_view one, std::vector<int64_t>& out) { merge_piece(one, out); });
}

void BytePairMerger::merge_piece(std::string_view piece, std::vector<int64_t>& ids) const {
  if (ignore_merges_) {
    auto found = whole_pieces_.find(std::string(piece));
    if (found != whole_pieces_.end()) {
      ids.push_back(found->second);
      return;
    }
  }
  auto merge = [&](uint32_t* bytes) {
    for (size_t i = 0; i < piece.size(); ++i) bytes[i] = byte_ids_[static_cast<unsigned char>(piece[i])];
    merges_.merge(bytes, piece.size(), ids);
  };
  if (piece.size() <= kShortBytes) {
    std::array<uint32_t, kShortBytes> bytes;
    merge(bytes.data());
  } else {
    std::vector<uint32_t> bytes(piece.size());
    merge(bytes.data());
  }
}

}  // namespace fsdp::data
