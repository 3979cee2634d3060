#pragma once

// Parsing of untrusted JSON: manifests, headers, vocabularies, lines of texts. Parsing takes time linear in
// the text (except for sorting keys), has limits, and refuses duplicate keys, which readers treat
// differently.

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

/// Error in a JSON text. The message follows the text's name: "is not valid JSON: ...".
class JsonError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct JsonLimits {
  /// Limit on nested brackets. The outermost bracket is level 1.
  int deepest_level = 64;
  /// Limit on the values of parse_json()'s structure, or of one member. A value takes up to 80 bytes.
  int64_t most_values = std::numeric_limits<int64_t>::max();
  /// Whether parse_json() refuses duplicate keys; otherwise the last one counts.
  bool unique_keys = true;
};

/// Throws JsonError if the text is not JSON, exceeds a limit or has a duplicate key.
nlohmann::json parse_json(std::string_view text, const JsonLimits& limits);

/// Parses a text that is an object, and calls `on_member` for its members one after another in the order of
/// the text, so that only one of them is in memory as a structure at a time. Exceptions of `on_member` pass
/// through. An error in the text may be found only after some members have been reported.
void read_json_members(std::string_view text, const JsonLimits& limits,
                       const std::function<void(std::string&& key, nlohmann::json&& value)>& on_member);

/// The canonical form of a text, which is the same for equal values: keys sorted by bytes, no white space,
/// numbers and strings as nlohmann writes them. Takes little more memory than the canonical text.
class CanonicalJson {
 public:
  /// Throws JsonError as parse_json() does, and for a text beyond 2 GiB.
  CanonicalJson(std::string_view text, const JsonLimits& limits);

  const std::string& text() const { return text_; }
  bool is_object() const { return text_.starts_with('{'); }

  /// Canonical text of a member's value in the outermost object; nothing if there is no such member.
  std::optional<std::string_view> member(std::string_view key) const;

  /// The canonical text of the object without that member.
  std::string without(std::string_view key) const;

  /// Number of comparisons of two keys.
  int64_t comparisons() const { return comparisons_; }

 private:
  class CanonicalWriter;
  struct CanonicalMember {
    uint32_t key_begin = 0, key_end = 0;           ///< range of keys_
    uint32_t begin = 0, value_begin = 0, end = 0;  ///< range of text_: the whole member, and its value
  };
  const CanonicalMember* find(std::string_view key) const;

  std::string text_;
  std::string keys_;                      ///< keys of the outermost object, concatenated
  std::vector<CanonicalMember> members_;  ///< members of the outermost object, sorted by key
  int64_t comparisons_ = 0;
};

}  // namespace fsdp::util
