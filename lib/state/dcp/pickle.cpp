#include "state/dcp/pickle.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "base/util/error.h"

namespace fsdp::checkpoint {
using nlohmann::json;
using ValueKind = PickleValue::ValueKind;

namespace {

constexpr std::string_view kOrderedDict = "collections.OrderedDict";

/// Text for a message from bytes of a file.
std::string shown_text(std::string_view text) {
  constexpr size_t kMostShown = 100;
  return json(text.substr(0, kMostShown)).dump(-1, ' ', true, json::error_handler_t::replace);
}

/// The stack machine. It knows the opcodes of Python's pickletools that occur in PyTorch's files.
class Machine {
 public:
  Machine(std::string_view bytes, std::span<const std::string_view> globals, const std::string& where,
          const PickleLimits& limits, std::deque<PickleValue>& values)
      : bytes_(bytes),
        globals_(globals),
        where_(where),
        most_values_(std::min(limits.most_values, kFewestValues + static_cast<int64_t>(bytes.size() / 2))),
        values_(values) {}

  const PickleValue* run() {
    for (;;) {
      const size_t at = at_;
      const auto opcode = static_cast<unsigned char>(take(1)[0]);
      if (opcode == '.') break;
      if (!execute_value(opcode) && !execute_structure(opcode) && !execute_call(opcode)) {
        refuse("has the opcode ", static_cast<int>(opcode), " at byte ", at,
               ", which PyTorch does not write");
      }
    }
    if (stack_.size() != 1 || !marks_.empty()) refuse("does not end with one value");
    if (at_ != bytes_.size()) refuse("is followed by something else at byte ", at_);
    return stack_.front();
  }

 private:
  template <typename... Parts>
  [[noreturn]] void refuse(const Parts&... parts) const {
    fail(ErrorKind::kCheckpoint, where_, ": the pickle ", parts...);
  }

  std::string_view take(uint64_t count) {
    if (count > bytes_.size() - at_) refuse("is cut off at byte ", bytes_.size());
    const std::string_view taken = bytes_.substr(at_, static_cast<size_t>(count));
    at_ += taken.size();
    return taken;
  }
  /// Reads an unsigned little-endian number.
  uint64_t take_number(size_t bytes) {
    uint64_t number = 0;
    std::memcpy(&number, take(bytes).data(), bytes);
    return number;
  }
  std::string_view take_line() {
    const size_t end = bytes_.find('\n', at_);
    if (end == std::string_view::npos) refuse("is cut off at byte ", bytes_.size());
    const std::string_view line = take(end - at_);
    take(1);
    return line;
  }

  PickleValue& make(ValueKind kind) {
    if (static_cast<int64_t>(values_.size()) >= most_values_) {
      refuse("has more than ", most_values_, " values, the most that such a file may have");
    }
    values_.push_back({.kind = kind});
    return values_.back();
  }
  PickleValue& push(ValueKind kind) {
    PickleValue& value = make(kind);
    stack_.push_back(&value);
    return value;
  }
  bool push_number(int64_t number, ValueKind kind = ValueKind::kInt) {
    if (number < 0 || number >= static_cast<int64_t>(small_numbers_.size())) {
      push(kind).number = number;
      return true;
    }
    PickleValue*& known =
        (kind == ValueKind::kBool ? booleans_ : small_numbers_)[static_cast<size_t>(number)];
    if (known == nullptr) {
      known = &make(kind);
      known->number = number;
    }
    stack_.push_back(known);
    return true;
  }
  /// Returns the shared value of a frequent constant.
  bool push_constant(ValueKind kind, PickleValue*& known) {
    if (known == nullptr) known = &make(kind);
    stack_.push_back(known);
    return true;
  }
  bool push_text(std::string_view text) {
    push(ValueKind::kText).text = text;
    return true;
  }
  PickleValue* pop() {
    if (stack_.size() <= (marks_.empty() ? 0 : marks_.back())) refuse("takes more values than it has made");
    PickleValue* value = stack_.back();
    stack_.pop_back();
    return value;
  }
  PickleValue& top() {
    PickleValue* value = pop();
    stack_.push_back(value);
    return *value;
  }
  /// The last `count` values, in the order in which they were pushed.
  std::vector<const PickleValue*> pop_several(size_t count) {
    if (stack_.size() - (marks_.empty() ? 0 : marks_.back()) < count)
      refuse("takes more values than it has made");
    std::vector<const PickleValue*> items(stack_.end() - static_cast<ptrdiff_t>(count), stack_.end());
    stack_.resize(stack_.size() - count);
    return items;
  }
  std::vector<const PickleValue*> pop_to_mark() {
    if (marks_.empty()) refuse("has no mark where it needs one");
    std::vector<const PickleValue*> items = pop_several(stack_.size() - marks_.back());
    marks_.pop_back();
    return items;
  }
  bool push_tuple(std::vector<const PickleValue*> items) {
    push(ValueKind::kTuple).items = std::move(items);
    return true;
  }
  bool add(ValueKind kind, std::vector<const PickleValue*> items) {
    PickleValue& to = top();
    if (!to.is(kind)) refuse("adds to a value that is not a ", kind == ValueKind::kDict ? "dict" : "list");
    if (kind == ValueKind::kDict && items.size() % 2 != 0) refuse("has a dict with a key without a value");
    to.items.insert(to.items.end(), items.begin(), items.end());
    return true;
  }

  bool execute_value(unsigned char opcode) {
    switch (opcode) {
      case 'N':  // NONE
        return push_constant(ValueKind::kNone, none_);
      case 0x88:  // NEWTRUE
      case 0x89:  // NEWFALSE
        return push_number(opcode == 0x88, ValueKind::kBool);
      case 'J':  // BININT
        return push_number(static_cast<int32_t>(take_number(4)));
      case 'K':  // BININT1
        return push_number(static_cast<int64_t>(take_number(1)));
      case 'M':  // BININT2
        return push_number(static_cast<int64_t>(take_number(2)));
      case 0x8a:  // LONG1
        return push_long();
      case 'G':  // BINFLOAT
        return push_float();
      case 'X':  // BINUNICODE
        return push_text(take(take_number(4)));
      case 0x8c:  // SHORT_BINUNICODE
        return push_text(take(take_number(1)));
      case 0x8d:  // BINUNICODE8
        return push_text(take(take_number(8)));
      default:
        return false;
    }
  }

  bool push_long() {
    const auto bytes = static_cast<size_t>(take_number(1));
    if (bytes > sizeof(int64_t)) refuse("has a number of ", bytes, " bytes");
    uint64_t number = take_number(bytes);
    const size_t unused = 64 - 8 * bytes;
    if (bytes > 0) number <<= unused;
    return push_number(bytes > 0 ? static_cast<int64_t>(number) >> unused : 0);
  }

  bool push_float() {
    std::array<char, sizeof(double)> number;
    const std::string_view taken = take(number.size());
    std::reverse_copy(taken.begin(), taken.end(), number.begin());  // big-endian
    std::memcpy(&push(ValueKind::kFloat).number, number.data(), number.size());
    return true;
  }

  bool execute_structure(unsigned char opcode) {
    switch (opcode) {
      case 0x80:  // PROTO
        if (const uint64_t protocol = take_number(1); protocol > 5) refuse("has the protocol ", protocol);
        return true;
      case 0x95:  // FRAME
        if (take_number(8) > bytes_.size() - at_) refuse("is cut off at byte ", bytes_.size());
        return true;
      case '(':  // MARK
        marks_.push_back(stack_.size());
        return true;
      case ')':  // EMPTY_TUPLE
        return push_constant(ValueKind::kTuple, empty_tuple_);
      case 't':  // TUPLE
        return push_tuple(pop_to_mark());
      case 0x85:  // TUPLE1
      case 0x86:  // TUPLE2
      case 0x87:  // TUPLE3
        return push_tuple(pop_several(opcode - 0x84U));
      case ']':  // EMPTY_LIST
        push(ValueKind::kList);
        return true;
      case '}':  // EMPTY_DICT
        push(ValueKind::kDict);
        return true;
      case 'a':  // APPEND
        return add(ValueKind::kList, pop_several(1));
      case 'e':  // APPENDS
        return add(ValueKind::kList, pop_to_mark());
      case 's':  // SETITEM
        return add(ValueKind::kDict, pop_several(2));
      case 'u':  // SETITEMS
        return add(ValueKind::kDict, pop_to_mark());
      case 'q':  // BINPUT
        return remember(take_number(1));
      case 'r':  // LONG_BINPUT
        return remember(take_number(4));
      case 0x94:  // MEMOIZE
        return remember(memo_.size());
      case 'h':  // BINGET
        return recall(take_number(1));
      case 'j':  // LONG_BINGET
        return recall(take_number(4));
      default:
        return false;
    }
  }

  bool remember(uint64_t index) {
    // Picklers number their memo entries in sequence, so a larger index would only waste memory.
    if (index > memo_.size())
      refuse("keeps a value under ", index, ", but has kept ", memo_.size(), " so far");
    PickleValue* value = &top();
    if (index == memo_.size()) memo_.push_back(value);
    memo_[index] = value;
    return true;
  }
  bool recall(uint64_t index) {
    if (index >= memo_.size()) refuse("takes the value kept under ", index, ", but has kept ", memo_.size());
    stack_.push_back(memo_[index]);
    return true;
  }

  /// Reads opcodes that name a module, a class or a function of Python.
  bool execute_call(unsigned char opcode) {
    switch (opcode) {
      case 'c':    // GLOBAL
      case 'i': {  // INST
        const std::string_view module = take_line(), name = take_line();
        push_global(module, name);
        if (opcode == 'i') refuse("makes an instance with an opcode of Python 2");
        return true;
      }
      case 0x93: {  // STACK_GLOBAL
        const PickleValue *name = pop(), *module = pop();
        if (!name->is(ValueKind::kText) || !module->is(ValueKind::kText))
          refuse("has a global whose name is not a text");
        push_global(module->text, name->text);
        return true;
      }
      case 'R':     // REDUCE
      case 0x81: {  // NEWOBJ
        const PickleValue *arguments = pop(), *callable = pop();
        if (!callable->is(ValueKind::kGlobal) || !arguments->is(ValueKind::kTuple))
          refuse("calls a value that is not a function");
        if (callable->text == kOrderedDict && arguments->items.empty()) {
          push(ValueKind::kDict);
          return true;
        }
        PickleValue& object = push(ValueKind::kObject);
        object.text = callable->text;
        object.inner = arguments;
        return true;
      }
      case 'b': {  // BUILD
        const PickleValue* state = pop();
        PickleValue& object = top();
        if (!object.is(ValueKind::kObject) || object.state != nullptr)
          refuse("sets the state of a value that has none");
        object.state = state;
        return true;
      }
      case 'Q': {  // BINPERSID
        const PickleValue* what = pop();
        push(ValueKind::kPersistent).inner = what;
        return true;
      }
      default:
        return false;
    }
  }

  void push_global(std::string_view module, std::string_view name) {
    for (const std::string_view known : globals_) {
      if (known.size() == module.size() + 1 + name.size() && known.starts_with(module) &&
          known.ends_with(name) && known[module.size()] == '.') {
        push(ValueKind::kGlobal).text = known;
        return;
      }
    }
    refuse("names ", shown_text(concat(module, ".", name)),
           ", which no checkpoint of PyTorch needs, so reading stopped there and nothing was run");
  }

  std::string_view bytes_;
  size_t at_ = 0;
  std::span<const std::string_view> globals_;
  const std::string& where_;
  static constexpr int64_t kFewestValues = 256;
  int64_t most_values_;
  std::deque<PickleValue>& values_;
  // Deques do not reserve memory beyond their content.
  std::deque<PickleValue*> stack_, memo_;
  std::deque<size_t> marks_;  ///< heights of the stack
  PickleValue *none_ = nullptr, *empty_tuple_ = nullptr;
  std::array<PickleValue*, 256> small_numbers_{}, booleans_{};
};

}  // namespace

Pickle::Pickle(std::string bytes, std::span<const std::string_view> globals, const std::string& where,
               const PickleLimits& limits)
    : bytes_(std::move(bytes)) {
  root_ = Machine(bytes_, globals, where, limits, values_).run();
}

const PickleValue* find_item(const PickleValue& dict, std::string_view key) {
  if (!dict.is(ValueKind::kDict)) return nullptr;
  for (size_t i = dict.items.size(); i >= 2; i -= 2) {
    if (dict.items[i - 2]->is(ValueKind::kText) && dict.items[i - 2]->text == key) return dict.items[i - 1];
  }
  return nullptr;
}

json json_of(const PickleValue& value, size_t most_text_bytes) {
  const auto simple = [&most_text_bytes](const PickleValue& of) -> json {
    if (of.is(ValueKind::kBool)) return of.number != 0;
    if (of.is(ValueKind::kInt)) return of.number;
    if (of.is(ValueKind::kFloat)) return of.real();
    if (!of.is(ValueKind::kText) || of.text.size() > most_text_bytes) return nullptr;
    most_text_bytes -= of.text.size();
    return of.text;
  };
  if (!value.is(ValueKind::kTuple) && !value.is(ValueKind::kList)) return simple(value);
  json list = json::array();
  for (const PickleValue* item : value.items) list.push_back(simple(*item));
  return list;
}

}  // namespace fsdp::checkpoint
