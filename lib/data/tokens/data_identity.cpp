#include "data/tokens/data_identity.h"

#include <algorithm>
#include <filesystem>
#include <vector>

#include "base/util/error.h"
#include "base/util/hash.h"
#include "base/util/text.h"

namespace fsdp::data {
namespace {

using nlohmann::json;

constexpr int64_t kBlocks = 16;
constexpr int64_t kBlockLength = 8192;  ///< length of a block in tokens

/// Continues `hash` over blocks of `length` numbers, which read(begin, count, out) copies.
template <typename Read>
uint64_t sampled_hash(int64_t length, uint64_t hash, const Read& read) {
  std::vector<int64_t> block(static_cast<size_t>(std::min(length, kBlockLength)));
  // The last block ends with the file; where blocks would overlap, each begins where the one before ends.
  const int64_t stride = std::max((length - kBlockLength) / (kBlocks - 1), kBlockLength);
  for (int64_t i = 0; i < kBlocks; ++i) {
    const bool last = i == kBlocks - 1;
    const int64_t begin = last ? std::max(length - kBlockLength, i * kBlockLength) : i * stride;
    const int64_t count = std::min(kBlockLength, length - begin);
    if (count <= 0) break;
    read(begin, count, block.data());
    hash = util::mix64(hash ^ util::xxh3_64(block.data(), static_cast<size_t>(count) * sizeof(int64_t)));
  }
  return hash;
}

json identity_of(const TokenFile& file) {
  uint64_t hash = sampled_hash(file.size(), 0, [&](int64_t begin, int64_t count, int64_t* out) {
    file.read(begin, count, out);
    file.release(begin, count);
  });
  hash = sampled_hash(file.documents(), hash, [&](int64_t begin, int64_t count, int64_t* out) {
    for (int64_t i = 0; i < count; ++i) out[i] = file.document_begin(begin + i);
  });
  if (file.turns() != nullptr) hash = util::mix64(hash ^ file.turns()->hash());
  return identity_entry(std::filesystem::path(file.path()).filename().string(), file.size(), file.documents(),
                        hash);
}

std::string text_of(const json& file, const char* key) {
  return file.is_object() && file.contains(key) ? file[key].dump() : "null";
}

/// Whether two entries agree in everything but the name.
bool same_content(const json& a, const json& b) {
  for (const char* key : {"tokens", "documents", "bytes", "sampled_xxh3_64"}) {
    if (text_of(a, key) != text_of(b, key)) return false;
  }
  return true;
}

}  // namespace

json identity_entry(const std::string& name, int64_t tokens, int64_t documents, uint64_t hash) {
  return {{"name", name},
          {"tokens", tokens},
          {"documents", documents},
          {"sampled_xxh3_64", util::hex_digits(hash)}};
}

json identity_of(const TokenFiles& files) {
  json identity = json::array();
  for (size_t i = 0; i < files.paths().size(); ++i) identity.push_back(identity_of(files.file(i)));
  return identity;
}

std::optional<std::string> difference(const json& recorded, const json& found) {
  const size_t before = recorded.is_array() ? recorded.size() : 0;
  for (size_t i = 0; i < std::max(before, found.size()); ++i) {
    if (i >= found.size()) return concat("file ", i + 1, ", ", text_of(recorded[i], "name"), ", is missing");
    const std::string name = text_of(found[i], "name");
    if (i >= before) return concat("file ", i + 1, ", ", name, ", is new");
    if (same_content(recorded[i], found[i])) continue;
    const std::string old_name = text_of(recorded[i], "name");
    const char* const unit = found[i].contains("bytes") ? "bytes" : "tokens";
    return concat("file ", i + 1, ", ", name, ", has ", text_of(found[i], unit), " ", unit,
                  name == old_name ? " and had " : concat(", but ", old_name, " had "),
                  text_of(recorded[i], unit),
                  text_of(found[i], unit) == text_of(recorded[i], unit) ? ", but different ones" : "");
  }
  return std::nullopt;
}

}  // namespace fsdp::data
