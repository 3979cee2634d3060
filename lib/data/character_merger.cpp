#include "data/character_merger.h"

#include <algorithm>

#include "data/utf8.h"

namespace fsdp::data {

std::array<std::optional<uint32_t>, 256> byte_tokens(const Vocabulary& vocabulary) {
  constexpr std::string_view kHex = "0123456789ABCDEF";
  std::array<std::optional<uint32_t>, 256> ids;
  for (size_t byte = 0; byte < ids.size(); ++byte) {
    auto found = vocabulary.tokens.find(std::string("<0x") + kHex[byte >> 4] + kHex[byte & 15] + '>');
    if (found != vocabulary.tokens.end()) ids[byte] = static_cast<uint32_t>(found->second);
  }
  return ids;
}

CharacterMerger::CharacterMerger(const Vocabulary& vocabulary)
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

void CharacterMerger::encode(std::string_view piece, std::vector<int64_t>& ids) const {
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
    if (byte_fallback_ &&
        std::all_of(character.begin(), character.end(), [&](char byte) { return id_of(byte).has_value(); })) {
      // An unknown character before it comes behind, as in tokenizers.
      for (char byte : character) tokens.push_back(*id_of(byte));
    } else if (unknown_) {
      if (!fuse_unknown_) end_unknown();
      unknown_waits = true;
    }
  }
  end_unknown();
  merges_.merge(tokens.data(), tokens.size(), ids);
}

}  // namespace fsdp::data
