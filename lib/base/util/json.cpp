#include "base/util/json.h"

#include <algorithm>
#include <unordered_set>
#include <utility>

#include "base/util/error.h"

namespace fsdp::util {
using nlohmann::json;

/// Handler of parser events that enforces the limit on levels and reports texts that are not JSON. The
/// handlers throw through the parser, which keeps its state in objects.
class JsonHandler {
 public:
  [[noreturn]] bool parse_error(size_t /*position*/, const std::string& /*token*/,
                                const nlohmann::detail::exception& error) const {
    std::string cause = error.what();
    // nlohmann's messages begin with "[json.exception.parse_error.101] ".
    if (size_t end = cause.find("] "); end != std::string::npos) cause.erase(0, end + 2);
    throw JsonError("is not valid JSON: " + cause.substr(0, 200));
  }
  [[noreturn]] bool binary(json::binary_t& /*value*/) const {
    throw JsonError("is not valid JSON: it has binary data");
  }

 protected:
  explicit JsonHandler(int deepest_level) : deepest_level_(deepest_level) {}

  void enter() {
    if (++level_ > deepest_level_) {
      throw JsonError(concat("nests deeper than ", deepest_level_, " levels"));
    }
  }
  void leave() { --level_; }

  int level_ = 0;  ///< open brackets

 private:
  int deepest_level_;
};

namespace {

[[noreturn]] void refuse_twice(const std::string& key) {
  throw JsonError(concat("gives ",
                         json(key.substr(0, 200)).dump(-1, ' ', true, json::error_handler_t::replace),
                         " twice in one object"));
}

using OnMember = std::function<void(std::string&& key, json&& value)>;

/// Builds one structure from the text or, with `on_member`, from each member of the text's object.
class Builder : public JsonHandler {
 public:
  Builder(const JsonLimits& limits, const OnMember* on_member)
      : JsonHandler(limits.deepest_level),
        limits_(limits),
        on_member_(on_member),
        outer_(on_member ? 1 : 0) {}

  bool null() { return value(nullptr); }
  bool boolean(bool value) { return this->value(value); }
  bool number_integer(int64_t value) { return this->value(value); }
  bool number_unsigned(uint64_t value) { return this->value(value); }
  bool number_float(double value, const std::string& /*text*/) { return this->value(value); }
  bool string(std::string& value) { return this->value(std::move(value)); }

  bool start_object(size_t /*elements*/) {
    enter();
    if (level_ > outer_) open_.push_back(add(json::object()));
    return true;
  }
  bool start_array(size_t /*elements*/) {
    enter();
    if (level_ <= outer_) throw JsonError("is not a JSON object");
    open_.push_back(add(json::array()));
    return true;
  }
  bool end_object() { return end(); }
  bool end_array() { return end(); }

  bool key(std::string& key) {
    if (level_ <= outer_) {
      if (!member_keys_.insert(key).second) refuse_twice(key);
      member_key_ = std::move(key);
      return true;
    }
    auto [at, is_new] = open_.back()->get_ref<json::object_t&>().emplace(std::move(key), nullptr);
    if (!is_new && limits_.unique_keys) refuse_twice(at->first);
    slot_ = &at->second;
    return true;
  }

  json take() {
    values_ = 0;
    return std::exchange(root_, json());
  }

 private:
  bool value(json value) {
    if (level_ < outer_) throw JsonError("is not a JSON object");
    add(std::move(value));
    hand_over();
    return true;
  }

  bool end() {
    if (level_ > outer_) {
      open_.pop_back();
      hand_over();
    }
    leave();
    return true;
  }

  void hand_over() {
    if (on_member_ != nullptr && open_.empty()) (*on_member_)(std::move(member_key_), take());
  }

  json* add(json&& value) {
    if (++values_ > limits_.most_values) {
      throw JsonError(concat("has more than ", limits_.most_values, " values in one place"));
    }
    if (open_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    if (open_.back()->is_array()) {
      return &open_.back()->get_ref<json::array_t&>().emplace_back(std::move(value));
    }
    *slot_ = std::move(value);
    return slot_;
  }

  JsonLimits limits_;
  const OnMember* on_member_;
  int outer_;  ///< number of bracket levels outside of the structures
  std::unordered_set<std::string> member_keys_;
  std::string member_key_;
  int64_t values_ = 0;
  json root_;
  // Pointers stay valid: an array does not grow while one of its values is open, and a map does not move its
  // nodes.
  std::vector<json*> open_;
  json* slot_ = nullptr;  ///< destination of the value of the last key
};

template <typename SomeHandler>
void parse(std::string_view text, SomeHandler& handler) {
  json::sax_parse(text.begin(), text.end(), &handler);
}

void append_quoted(std::string& text, const std::string& value) {
  const bool plain = std::all_of(value.begin(), value.end(),
                                 [](char c) { return c >= 0x20 && c < 0x7f && c != '"' && c != '\\'; });
  if (plain) {
    text.append(1, '"').append(value).append(1, '"');
  } else {
    text += json(value).dump(-1, ' ', false, json::error_handler_t::replace);
  }
}

}  // namespace

json parse_json(std::string_view text, const JsonLimits& limits) {
  Builder builder(limits, nullptr);
  parse(text, builder);
  return builder.take();
}

void read_json_members(std::string_view text, const JsonLimits& limits,
                       const std::function<void(std::string&& key, json&& value)>& on_member) {
  Builder builder(limits, &on_member);
  parse(text, builder);
}

/// Writes members in the order of the text. The end of an object sorts its members unless they are sorted.
/// The members of all open objects are one stack, their keys another.
class CanonicalJson::CanonicalWriter : public JsonHandler {
 public:
  CanonicalWriter(CanonicalJson& result, int deepest_level)
      : JsonHandler(deepest_level),
        result_(result),
        text_(result.text_),
        keys_(result.keys_),
        members_(result.members_) {}

  bool null() { return plain("null"); }
  bool boolean(bool value) { return plain(value ? "true" : "false"); }
  bool number_integer(int64_t value) { return plain(std::to_string(value)); }
  bool number_unsigned(uint64_t value) { return plain(std::to_string(value)); }
  bool number_float(double value, const std::string& /*text*/) { return plain(json(value).dump()); }
  bool string(std::string& value) {
    separate();
    append_quoted(text_, value);
    return true;
  }

  bool start_object(size_t /*elements*/) { return open('{'); }
  bool start_array(size_t /*elements*/) { return open('['); }

  bool key(std::string& key) {
    Open& object = open_.back();
    CanonicalMember member{.key_begin = position(keys_)};
    keys_ += key;
    member.key_end = position(keys_);
    if (!object.is_empty) {
      CanonicalMember& before = members_.back();
      before.end = position(text_);
      text_ += ',';
      ++result_.comparisons_;
      const int order = key_of(before).compare(key);
      if (order == 0) refuse_twice(key);
      object.is_sorted = object.is_sorted && order < 0;
    }
    object.is_empty = false;
    member.begin = position(text_);
    append_quoted(text_, key);
    text_ += ':';
    member.value_begin = position(text_);
    members_.push_back(member);
    return true;
  }

  bool end_object() {
    Open object = open_.back();
    if (!object.is_empty) members_.back().end = position(text_);
    if (!object.is_sorted) sort(object);
    text_ += '}';
    open_.pop_back();
    leave();
    if (level_ == 0) return true;  // find() needs the outermost members
    keys_.resize(object.first_key);
    members_.resize(object.first_member);
    return true;
  }
  bool end_array() {
    text_ += ']';
    open_.pop_back();
    leave();
    return true;
  }

 private:
  struct Open {
    bool is_object = false, is_empty = true, is_sorted = true;
    size_t first_member = 0, first_key = 0;  ///< sizes of members_ and keys_ before the object
  };

  static uint32_t position(const std::string& text) { return static_cast<uint32_t>(text.size()); }

  std::string_view key_of(const CanonicalMember& member) const {
    return std::string_view(keys_).substr(member.key_begin, member.key_end - member.key_begin);
  }

  bool plain(std::string_view value) {
    separate();
    text_ += value;
    return true;
  }

  void separate() {
    // A number may grow: 1e2 becomes 100.0.
    if (text_.size() > std::numeric_limits<uint32_t>::max() / 2) throw JsonError("is too long a JSON text");
    if (open_.empty() || open_.back().is_object) return;
    if (!open_.back().is_empty) text_ += ',';
    open_.back().is_empty = false;
  }

  bool open(char bracket) {
    separate();
    enter();
    text_ += bracket;
    open_.push_back(
        {.is_object = bracket == '{', .first_member = members_.size(), .first_key = keys_.size()});
    return true;
  }

  void sort(const Open& object) {
    const auto first = members_.begin() + static_cast<ptrdiff_t>(object.first_member);
    const uint32_t begin = first->begin;
    std::sort(first, members_.end(), [this](const CanonicalMember& a, const CanonicalMember& b) {
      ++result_.comparisons_;
      return key_of(a) < key_of(b);
    });
    std::string sorted;
    sorted.reserve(text_.size() - begin);
    for (auto member = first; member != members_.end(); ++member) {
      if (member != first) {
        if (key_of(member[-1]) == key_of(*member)) refuse_twice(std::string(key_of(*member)));
        sorted += ',';
      }
      const uint32_t from = member->begin, to = begin + position(sorted);
      sorted.append(text_, from, member->end - from);
      member->value_begin = to + (member->value_begin - from);
      member->end = to + (member->end - from);
      member->begin = to;
    }
    text_.replace(begin, std::string::npos, sorted);
  }

  CanonicalJson& result_;
  std::string& text_;
  std::string& keys_;
  std::vector<CanonicalMember>& members_;
  std::vector<Open> open_;
};

CanonicalJson::CanonicalJson(std::string_view text, const JsonLimits& limits) {
  text_.reserve(text.size());
  CanonicalWriter writer(*this, limits.deepest_level);
  parse(text, writer);
}

const CanonicalJson::CanonicalMember* CanonicalJson::find(std::string_view key) const {
  const auto key_of = [this](const CanonicalMember& member) {
    return std::string_view(keys_).substr(member.key_begin, member.key_end - member.key_begin);
  };
  const auto found = std::lower_bound(
      members_.begin(), members_.end(), key,
      [&](const CanonicalMember& member, std::string_view wanted) { return key_of(member) < wanted; });
  return found == members_.end() || key_of(*found) != key ? nullptr : &*found;
}

std::optional<std::string_view> CanonicalJson::member(std::string_view key) const {
  const CanonicalMember* found = find(key);
  if (found == nullptr) return std::nullopt;
  return std::string_view(text_).substr(found->value_begin, found->end - found->value_begin);
}

std::string CanonicalJson::without(std::string_view key) const {
  const CanonicalMember* found = find(key);
  if (found == nullptr) return text_;
  size_t begin = found->begin, end = found->end;
  // Also removes the comma after the member or, if the member is the last, the comma before it.
  if (text_[end] == ',') {
    ++end;
  } else if (text_[begin - 1] == ',') {
    --begin;
  }
  std::string text;
  text.reserve(text_.size());
  return text.append(text_, 0, begin).append(text_, end);
}

}  // namespace fsdp::util
