// Names of weights here and in GGUF, and their layouts there.

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

namespace {

/// The rows as a grid of outer x middle x inner, whose first axes change places (`axis` 0) or whose last.
at::Tensor reordered(const at::Tensor& weight, int64_t outer, int64_t middle, int64_t axis) {
  return weight.reshape({outer, middle, weight.size(0) / outer / middle, -1})
      .transpose(axis, axis + 1)
      .reshape(weight.sizes());
}

at::Tensor converted(const at::Tensor& weight, Stored stored, const nn::ModelOptions& options,
                     bool to_theirs) {
  const auto interleaved = [&](int64_t heads) {
    return reordered(weight, heads, to_theirs ? 2 : weight.size(0) / heads / 2, 1);
  };
  const int64_t heads = options.num_attention_heads;
  switch (stored) {
    case Stored::kQueryHeads:
      return interleaved(heads);
    case Stored::kKeyHeads:
      return interleaved(options.num_key_value_heads);
    case Stored::kQkvByHead:
      return to_theirs ? reordered(weight, heads, 3, 0) : reordered(weight, 3, heads, 0);
    case Stored::kTransposed:
      return weight.dim() == 2 ? weight.t().contiguous() : weight;
    case Stored::kPlusOne:
      return to_theirs ? weight.to(at::kFloat).add(1) : weight.to(at::kFloat).sub(1).to(weight.scalar_type());
    case Stored::kSame:
    case Stored::kStacked:
      break;
  }
  return weight;
}

}  // namespace

at::Tensor to_theirs(const at::Tensor& weight, Stored stored, const nn::ModelOptions& options) {
  return converted(weight, stored, options, true);
}

at::Tensor to_ours(const at::Tensor& weight, Stored stored, const nn::ModelOptions& options) {
  return converted(weight, stored, options, false);
}

}  // namespace fsdp::gguf
