#include "checkpoint/json.h"

#include "checkpoint/raw_file.h"
#include "util/error.h"

namespace fsdp::checkpoint {
using nlohmann::json;

namespace {

template <typename Body>
auto naming(const std::string& where, const Body& body) {
  try {
    return body();
  } catch (const util::JsonError& error) {
    util::fail(util::ErrorKind::kCheckpoint, where, " ", error.what());
  }
}

}  // namespace

json parse_json(std::string_view text, int deepest_level, const std::string& where) {
  return naming(where, [&] { return util::parse_json(text, {.deepest_level = deepest_level}); });
}

json read_json(const std::filesystem::path& path, int64_t largest_bytes, const std::string& what) {
  constexpr int kDeepestLevel = 16;
  RawFile file = RawFile::open(path);
  if (file.size_bytes() > largest_bytes) {
    util::fail(util::ErrorKind::kCheckpoint, path.string(), " has ", file.size_bytes(),
               " bytes, more than any ", what);
  }
  std::string text(static_cast<size_t>(file.size_bytes()), '\0');
  file.read_at(0, text.data(), static_cast<int64_t>(text.size()));
  return parse_json(text, kDeepestLevel, path.string());
}

void read_json_members(std::string_view text, const util::JsonLimits& limits, const std::string& where,
                       const std::function<void(std::string&& key, json&& value)>& on_member) {
  naming(where, [&] { util::read_json_members(text, limits, on_member); });
}

util::CanonicalJson canonical_json(std::string_view text, int deepest_level, const std::string& where) {
  return naming(where, [&] { return util::CanonicalJson(text, {.deepest_level = deepest_level}); });
}

}  // namespace fsdp::checkpoint
