#include "checkpoint/json.h"

#include <set>

#include "checkpoint/raw_file.h"
#include "util/error.h"

namespace fsdp::checkpoint {
using nlohmann::json;
using util::ErrorKind;
using util::fail;

json parse_json(std::string_view text, int deepest_level, const std::string& where) {
  std::set<std::string> keys;
  // The callback sees every bracket and key while the text is read, so a hostile text is refused before it
  // has made a structure many times its size.
  auto watch = [&](int depth, json::parse_event_t event, json& parsed) {
    if (depth > deepest_level) {
      fail(ErrorKind::kCheckpoint, where, " nests deeper than ", deepest_level,
           " levels, which no file of this kind does");
    }
    if (event == json::parse_event_t::key && depth == 1) {
      auto key = parsed.get<std::string>();
      if (!keys.insert(key).second) {
        fail(ErrorKind::kCheckpoint, where, " gives \"", key, "\" twice");
      }
    }
    return true;
  };
  try {
    return json::parse(text.begin(), text.end(), watch);
  } catch (const json::exception& error) {
    std::string cause = error.what();
    // nlohmann's messages open with "[json.exception.parse_error.101] ".
    if (size_t end = cause.find("] "); end != std::string::npos) cause.erase(0, end + 2);
    fail(ErrorKind::kCheckpoint, where, " is not valid JSON: ", cause.substr(0, 200));
  }
}

json read_json(const std::filesystem::path& path, int64_t largest_bytes, const std::string& what) {
  constexpr int kDeepestLevel = 16;
  RawFile file = RawFile::open(path);
  if (file.size_bytes() > largest_bytes) {
    fail(ErrorKind::kCheckpoint, path.string(), " has ", file.size_bytes(), " bytes, more than any ", what);
  }
  std::string text(static_cast<size_t>(file.size_bytes()), '\0');
  file.read_at(0, text.data(), static_cast<int64_t>(text.size()));
  return parse_json(text, kDeepestLevel, path.string());
}

}  // namespace fsdp::checkpoint
