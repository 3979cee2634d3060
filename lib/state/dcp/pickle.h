#pragma once

// Reads Python's pickles as data. A pickle is a program for a stack machine that may call any Python
// function. Here a call only makes a value that names the function. Nothing is ever run, and a pickle that
// names anything outside a given list is refused.

#include <bit>
#include <cstdint>
#include <deque>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp::checkpoint {

/// A value of a pickle, owned by the Pickle. Lists, dicts and objects may contain themselves, so a reader
/// must limit its depth.
struct PickleValue {
  enum class ValueKind : uint8_t {
    kNone,
    kBool,
    kInt,
    kFloat,
    kText,
    kTuple,
    kList,
    kDict,
    kGlobal,      ///< a name in a module
    kObject,      ///< a call or an instance: `text` is the global, `inner` the tuple of arguments
    kPersistent,  ///< an object that is stored outside the pickle, identified by `inner`
  };

  ValueKind kind = ValueKind::kNone;
  int64_t number = 0;          ///< kInt, kBool; kFloat: the bits of its real()
  std::string_view text = {};  ///< kText; the name of kGlobal and kObject: "torch.Size"
  /// Items of a tuple or list; alternating keys and values of a dict.
  std::vector<const PickleValue*> items = {};
  const PickleValue* inner = nullptr;  ///< see kObject and kPersistent
  const PickleValue* state = nullptr;  ///< state of an object; null if it is not set

  bool is(ValueKind expected) const { return kind == expected; }
  double real() const { return std::bit_cast<double>(number); }
  /// Whether the value is an object of this global.
  bool is_object(std::string_view global) const { return kind == ValueKind::kObject && text == global; }
};

/// Limits of memory. A pickle may make at most `most_values` values, and at most half as many as it has bytes
/// (beside a fixed number). A value takes 72 bytes and up to 16 bytes of references. Frequent values (None,
/// small numbers, the empty tuple) are made once.
struct PickleLimits {
  int64_t most_values = 1 << 16;
};

class Pickle {
 public:
  /// `globals`: the names that the pickle may contain, as "module.name"; must outlive the object. Throws
  /// Error(kCheckpoint) that begins with `where` if the pickle contains another name, is cut off or damaged,
  /// or exceeds the limits. Time and memory are linear in the bytes. No recursion.
  Pickle(std::string bytes, std::span<const std::string_view> globals, const std::string& where,
         const PickleLimits& limits = {});
  Pickle(const Pickle&) = delete;
  Pickle& operator=(const Pickle&) = delete;

  const PickleValue& root() const { return *root_; }
  size_t bytes() const { return bytes_.size(); }

 private:
  std::string bytes_;  ///< memory of the texts, which are views
  std::deque<PickleValue> values_;
  const PickleValue* root_ = nullptr;
};

/// The value under a key of a dict, the last value if there are several. Null if there is none.
const PickleValue* find_item(const PickleValue& dict, std::string_view key);

/// Converts numbers, texts, and lists and tuples of them to JSON. Anything else becomes null, and so do texts
/// after `most_text_bytes` in all, because a pickle may refer to one text many times.
nlohmann::json json_of(const PickleValue& value, size_t most_text_bytes);

}  // namespace fsdp::checkpoint
