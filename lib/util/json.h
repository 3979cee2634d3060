#pragma once

// JSON that comes from outside: manifests, headers, vocabularies, lines of texts. Read in time linear in the
// text but for the sorting of keys, with limits, and without keys that are given twice in an object, of which
// each reader would believe another.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp::util {

/// What is wrong with a text. The message follows the text's name in a sentence: "is not valid JSON: ...".
class JsonError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct JsonLimits {
  /// Of brackets; the outermost is level 1.
  int deepest_level = 64;
  /// That are made a structure at once, by parse_json() or for one member; they take up to 80 bytes each.
  int64_t most_values = std::numeric_limits<int64_t>::max();
  /// Whether parse_json() refuses keys that are given twice; otherwise the last counts.
  bool unique_keys = true;
};

/// The text as a structure. JsonError when it is no JSON, goes over a limit or gives a key twice.
nlohmann::json parse_json(std::string_view text, const JsonLimits& limits);

/// The same for a text that is an object, whose members are given to `on_member` one after another in the
/// order of the text, so that no more than one of them is a structure at a time. What `on_member` throws
/// passes. A fault in the text may show only after some members.
void read_json_members(std::string_view text, const JsonLimits& limits,
                       const std::function<void(std::string&& key, nlohmann::json&& value)>& on_member);

/// A text in the one form that equal values have: keys sorted by bytes, without white space, numbers and
/// strings as nlohmann writes them. Needs little more memory than that text.
class CanonicalJson {
 public:
  /// JsonError as of parse_json(), and for a text beyond 2 GiB.
  CanonicalJson(std::string_view text, const JsonLimits& limits);

  const std::string& text() const { return text_; }
  bool is_object() const { return text_.starts_with('{'); }

  /// Canonical text of a member of the outermost object; nothing when it has none of that name.
  std::optional<std::string_view> member(std::string_view key) const;

  /// The canonical text of the object without that member.
  std::string without(std::string_view key) const;

  /// How often two keys were compared: how the effort grows with a text.
  int64_t comparisons() const { return comparisons_; }

 private:
  class Writer;
  struct Member {
    uint32_t key_begin = 0, key_end = 0;           ///< in keys_
    uint32_t begin = 0, value_begin = 0, end = 0;  ///< in text_: of all of it and of its value
  };
  const Member* find(std::string_view key) const;

  std::string text_;
  std::string keys_;             ///< of the outermost object, behind each other
  std::vector<Member> members_;  ///< of the outermost object, by key
  int64_t comparisons_ = 0;
};

}  // namespace fsdp::util
