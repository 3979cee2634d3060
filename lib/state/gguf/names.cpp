// Names of weights here and in GGUF.

#include <algorithm>
#include <charconv>
#include <utility>

#include "base/util/error.h"
#include "state/gguf/forms.h"

namespace fsdp::gguf {

namespace {

/// The numbers in a name.
struct Numbers {
  std::string layer, expert;
};

/// Those of a name that fits the pattern.
std::optional<Numbers> numbers_in(std::string_view name, std::string_view pattern) {
  Numbers numbers;
  for (const char c : pattern) {
    size_t length = 1;
    if (c == '*' || c == '#') {
      length = std::min(name.find_first_not_of("0123456789"), name.size());
      (c == '*' ? numbers.layer : numbers.expert) = name.substr(0, length);
    } else if (name.substr(0, 1) != std::string_view(&c, 1)) {
      length = 0;
    }
    if (length == 0) return std::nullopt;
    name.remove_prefix(length);
  }
  return name.empty() ? std::optional(std::move(numbers)) : std::nullopt;
}

std::string with_numbers(std::string_view pattern, const Numbers& numbers) {
  std::string name;
  for (const char c : pattern) {
    name += c == '*' ? numbers.layer : c == '#' ? numbers.expert : std::string(1, c);
  }
  return name;
}

/// A name without its last part, which is ".weight" or ".bias", and that part; nothing for other names.
std::optional<std::pair<std::string_view, std::string_view>> without_kind(std::string_view name) {
  const size_t dot = std::min(name.rfind('.'), name.size());
  const std::string_view kind = name.substr(dot);
  if (kind != ".weight" && kind != ".bias") return std::nullopt;
  return std::pair(name.substr(0, dot), kind);
}

}  // namespace

std::optional<NamedStorage> their_tensor(const GgufForm& form, std::string_view ours) {
  const auto parts = without_kind(ours);
  for (const TensorRule& rule : form.tensors) {
    const auto numbers = parts ? numbers_in(parts->first, rule.ours) : std::nullopt;
    if (!numbers) continue;
    NamedStorage place{concat(with_numbers(rule.theirs, *numbers), parts->second), rule.stored};
    const std::string& expert = numbers->expert;
    std::from_chars(expert.data(), expert.data() + expert.size(), place.expert);
    return place;
  }
  return std::nullopt;
}

std::optional<NamedStorage> our_tensor(const GgufForm& form, std::string_view theirs, int64_t expert) {
  const auto parts = without_kind(theirs);
  for (const TensorRule& rule : form.tensors) {
    auto numbers = parts ? numbers_in(parts->first, rule.theirs) : std::nullopt;
    if (!numbers) continue;
    numbers->expert = std::to_string(expert);
    return NamedStorage{concat(with_numbers(rule.ours, *numbers), parts->second), rule.stored, expert};
  }
  return std::nullopt;
}

}  // namespace fsdp::gguf
