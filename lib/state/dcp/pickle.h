#pragma once

// Reads Python's pickles as data. A pickle is a program for a stack machine that may call any function of Python;
// here a call only makes a value that names what would be called. Nothing is ever run, and a pickle that names
// anything outside a given list is refused.

#include <bit>
#include <cstdint>
#include <deque>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp::checkpoint {

/// A value of a pickle, which the Pickle owns. Lists, dicts and objects may contain themselves, so a reader
/// must know how deep it goes.
struct PickleValue {
  enum class Kind : uint8_t {
    kNone,
    kBool,
    kInt,
    kFloat,
    kText,
    kTuple,
    kList,
    kDict,
    kGlobal,      ///< a name of a module
    kObject,      ///< a call or an instance: `text` is the global, `inner` the tuple of arguments
    kPersistent,  ///< what the pickle's owner keeps elsewhere: `inner` says what
  };

  Kind kind = Kind::kNone;
  int64_t number = 0;                          ///< kInt, kBool; kFloat: the bits of its real()
  std::string_view text = {};                  ///< kText; the name of kGlobal and kObject: "torch.Size"
  std::vector<const PickleValue*> items = {};  ///< of a dict: keys and values by turns
  const PickleValue* inner = nullptr;          ///< of kObject and kPersistent
  const PickleValue* state = nullptr;          ///< of an object whose state is set

  bool is(Kind expected) const { return kind == expected; }
  double real() const { return std::bit_cast<double>(number); }
  /// Whether it is an object of this global.
  bool is_object(std::string_view global) const { return kind == Kind::kObject && text == global; }
};

/// Values that are made, of which there are no more than a fixed number and half of the bytes: a value takes 72 bytes and
/// up to 16 of references. Values that are often the same (None, small numbers, the empty tuple) are made once.
struct PickleLimits {
  int64_t most_values = 1 << 16;
};

class Pickle {
 public:
  /// `globals`: all that the pickle may name, as "module.name"; must outlive the object. kCheckpoint that starts
  /// with `where` when it names another, when it is cut off or damaged, or when it exceeds the limits. Time and
  /// memory are linear in the bytes, and nothing recurses.
  Pickle(std::string bytes, std::span<const std::string_view> globals, const std::string& where,
         const PickleLimits& limits = {});
  Pickle(const Pickle&) = delete;
  Pickle& operator=(const Pickle&) = delete;

  const PickleValue& root() const { return *root_; }
  size_t bytes() const { return bytes_.size(); }

 private:
  std::string bytes_;  ///< texts are views into it
  std::deque<PickleValue> values_;
  const PickleValue* root_ = nullptr;
};

/// The value under a key of a dict, the last where there are several; null where there is none.
const PickleValue* find_item(const PickleValue& dict, std::string_view key);

/// Numbers, texts, and lists and tuples of them as JSON, and null in place of anything else, and of texts beyond
/// `most_text_bytes` in all: a pickle may name one text many times.
nlohmann::json json_of(const PickleValue& value, size_t most_text_bytes);

}  // namespace fsdp::checkpoint
