// The parser under all readers of JSON, at any length: what it accepts is what nlohmann's own parser makes of
// the text, whole, member by member and in canonical form. The first byte says how often the rest is given in
// one list or object, so that a short input makes a long text: effort that grows faster than the text ends in
// libFuzzer's time-out.

#include <stdexcept>
#include <string>
#include <string_view>

#include "base/util/json.h"
#include "fuzz/fuzz_target.h"

namespace fsdp::fuzz {
namespace {

constexpr util::JsonLimits kLimits{.deepest_level = 32};

void require(bool holds, const char* what) {
  if (!holds) throw std::logic_error(what);
}

void read(const std::string& text) {
  nlohmann::json whole, members = nlohmann::json::object();
  try {
    whole = util::parse_json(text, kLimits);
  } catch (const util::JsonError& error) {
    require(std::string_view(error.what()).find('\n') == std::string_view::npos,
            "a refusal of several lines");
    return;
  }
  require(whole == nlohmann::json::parse(text), "another value than nlohmann's");
  const util::CanonicalJson canonical(text, kLimits);
  require(canonical.text() == whole.dump(), "another canonical form than nlohmann's");
  if (!whole.is_object()) return;
  util::read_json_members(text, kLimits, [&](std::string&& key, nlohmann::json&& value) {
    require(canonical.member(key) == value.dump(), "a member is not found in the canonical form");
    members[key] = std::move(value);
  });
  require(members == whole, "other members than the whole has");
}

}  // namespace

int json(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string body(reinterpret_cast<const char*>(data) + 1, size - 1);
  read(body);
  std::string list = "[", object = "{";
  const size_t times = size_t{data[0]} * 64;
  for (size_t i = 0; i < times && list.size() < (size_t{4} << 20); ++i) {
    list += (i == 0 ? "" : ",") + body;
    object += (i == 0 ? "\"" : ",\"") + std::to_string(i * 7919 % 100'003) + "\":" + body;
  }
  read(list + "]");
  read(object + "}");
  return 0;
}

}  // namespace fsdp::fuzz
