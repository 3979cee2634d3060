#include "tools/generate/request_line.h"

#include <utility>

#include "base/util/error.h"
#include "base/util/json.h"

namespace fsdp::generate {

using nlohmann::json;

namespace {

constexpr int64_t kMostCount = 1'000'000'000;

}  // namespace

RequestLine::RequestLine(std::string place, const std::string& text, const char* expected)
    : place_(std::move(place)), expected_(expected) {
  try {
    object_ = util::parse_json(text, {.deepest_level = 16});
  } catch (const std::exception& error) {
    refuse(error.what());
  }
  if (!object_.is_object()) refuse(util::concat("a value of type ", object_.type_name()));
}

std::optional<json> RequestLine::take(const char* key) {
  const auto found = object_.find(key);
  if (found == object_.end()) return std::nullopt;
  json value = std::move(*found);
  object_.erase(found);
  return value;
}

std::optional<std::string> RequestLine::text(const char* key) {
  const std::optional<json> value = take(key);
  if (!value) return std::nullopt;
  if (!value->is_string()) refuse(util::concat(key, " of type ", value->type_name()));
  return value->get<std::string>();
}

std::vector<std::string> RequestLine::texts(const char* key) {
  const std::optional<json> value = take(key);
  if (!value) return {};
  std::vector<std::string> found;
  for (const json& each : value->is_array() ? *value : json::array({*value})) {
    if (!each.is_string() || each.get_ref<const std::string&>().empty()) {
      refuse(util::concat(key, " with something other than texts that are not empty"));
    }
    found.push_back(each.get<std::string>());
  }
  return found;
}

std::optional<int64_t> RequestLine::count(const char* key, int64_t least) {
  const std::optional<json> value = take(key);
  if (!value) return std::nullopt;
  if (!value->is_number_unsigned() || *value < least || *value > kMostCount) {
    refuse(util::concat(key, " = ", value->dump().substr(0, 20)));
  }
  return value->get<int64_t>();
}

void RequestLine::finish() const {
  if (!object_.empty()) refuse("the key " + object_.begin().key());
}

void RequestLine::refuse(const std::string& found) const {
  fail(ErrorKind::kUsage, place_, ": expected ", expected_, ", with or without an \"id\"; found ", found);
}

}  // namespace fsdp::generate
