#include "data/chat/chat_turns.h"

#include <algorithm>
#include <optional>
#include <string_view>

#include "base/util/error.h"

namespace fsdp::data {
namespace {

constexpr std::string_view kSpace = " \t\n\r";

OrderedJson first_messages(const OrderedJson& messages, size_t count) {
  return OrderedJson(messages.begin(), messages.begin() + static_cast<int64_t>(count));
}

/// Renders messages. Nothing if the template refuses them, as it may if they are not a whole conversation.
std::optional<std::string> try_render(const RenderMessages& render, const OrderedJson& messages,
                                      bool add_generation_prompt) {
  if (messages.empty()) return std::nullopt;
  try {
    return render(messages, add_generation_prompt);
  } catch (const TemplateError&) {
    return std::nullopt;
  }
}

size_t common_prefix(std::string_view a, std::string_view b) {
  return static_cast<size_t>(std::ranges::mismatch(a, b).in1 - a.begin());
}

/// Returns the part of `a` that is not in `b`; empty if they are equal.
TextSpan difference(std::string_view a, std::string_view b) {
  const size_t begin = common_prefix(a, b), most = std::min(a.size(), b.size()) - begin;
  size_t suffix = 0;
  while (suffix < most && a[a.size() - 1 - suffix] == b[b.size() - 1 - suffix]) ++suffix;
  return {begin, a.size() - suffix};
}

/// Returns the strings of a message that its author wrote.
std::vector<OrderedJson*> strings_of(OrderedJson& message) {
  std::vector<OrderedJson*> strings;
  const auto add = [&](OrderedJson& object, const char* key) {
    const auto found = object.find(key);
    if (found != object.end() && found->is_string() && !found->get_ref<std::string&>().empty()) {
      strings.push_back(&*found);
    }
  };
  for (const char* key : {"content", "reasoning_content", "thinking", "reasoning"}) add(message, key);
  const auto calls = message.find("tool_calls");
  if (calls == message.end() || !calls->is_array()) return strings;
  for (OrderedJson& call : *calls) {
    if (!call.is_object()) continue;
    OrderedJson& function =
        call.contains("function") && call["function"].is_object() ? call["function"] : call;
    add(function, "name");
    add(function, "arguments");
  }
  return strings;
}

/// Returns the message with other words. No replaced text begins or ends as its replacement does.
OrderedJson with_other_words(OrderedJson message) {
  const std::vector<OrderedJson*> strings = strings_of(message);
  std::string used;
  for (const OrderedJson* string : strings) {
    std::string_view text = string->get_ref<const std::string&>();
    const size_t first = text.find_first_not_of(kSpace), last = text.find_last_not_of(kSpace);
    if (first != std::string_view::npos) used += {text[first], text[last]};
  }
  const std::string_view letters = "xyzwvutsrqponmlkjihgfedcba";
  const size_t free = letters.find_first_not_of(used);
  const std::string words(3, free == std::string_view::npos ? '*' : letters[free]);
  for (OrderedJson* string : strings) *string = words;
  if (message.contains("tool_calls") && message["tool_calls"].is_array()) {
    for (OrderedJson& call : message["tool_calls"]) {
      if (!call.is_object()) continue;
      OrderedJson& function =
          call.contains("function") && call["function"].is_object() ? call["function"] : call;
      if (function.contains("arguments") && function["arguments"].is_object()) {
        function["arguments"] = {{words, words}};
      }
    }
  }
  return message;
}

/// Returns the number of bytes of `tail`, the text after a message at the end of a conversation, with which
/// `rest` begins. If the tail continues differently, such as with the end of the text, both may begin alike
/// ("<|"), so only whole words count.
size_t shared_tail(std::string_view tail, std::string_view rest) {
  size_t shared = common_prefix(tail, rest);
  if (shared == tail.size()) return shared;
  while (shared > 0 && (kSpace.find(tail[shared - 1]) == std::string_view::npos) && tail[shared - 1] != '>' &&
         tail[shared - 1] != ']') {
    --shared;
  }
  return shared;
}

/// Removes white space at the end of a turn, unless it directly follows the message.
TextSpan trimmed(TextSpan turn, std::string_view whole, const OrderedJson& message) {
  const std::string_view text = whole.substr(turn.begin, turn.end - turn.begin);
  const std::string_view inked = text.substr(0, text.find_last_not_of(kSpace) + 1);
  if (message.contains("content") && message["content"].is_string()) {
    std::string_view content = message["content"].get_ref<const std::string&>();
    content = content.substr(0, content.find_last_not_of(kSpace) + 1);
    if (!content.empty() && inked.ends_with(content)) return turn;
  }
  return {turn.begin, turn.begin + inked.size()};
}

TextSpan find_turn(const OrderedJson& messages, size_t index, const std::string& whole,
                   const RenderMessages& render) {
  const bool is_last = index + 1 == messages.size();
  const std::optional<std::string> prompt =
      try_render(render, first_messages(messages, index), /*add_generation_prompt=*/true);
  const bool is_prompted = prompt && whole.starts_with(*prompt);
  // Text after the last turn may also be the end of the text, which a further message would change.
  OrderedJson next_messages = is_last ? messages : first_messages(messages, index + 1);
  if (is_last) next_messages.push_back({{"role", "user"}, {"content", "x"}});
  const std::optional<std::string> next = try_render(render, next_messages, /*add_generation_prompt=*/false);
  // The last turn ends with `whole`, a prefix of the longer text; others end with the shorter text.
  const std::string* const through = !next ? nullptr : is_last ? &whole : &*next;
  const bool fits = next && (is_last ? next->starts_with(whole) : whole.starts_with(*next));
  if (is_prompted && fits && through->size() > prompt->size()) return {prompt->size(), through->size()};

  OrderedJson changed = messages;
  changed[index] = with_other_words(messages[index]);
  const std::optional<std::string> other = try_render(render, changed, /*add_generation_prompt=*/false);
  const TextSpan words = other ? difference(whole, *other) : TextSpan{};
  if (words.begin >= words.end) {
    throw TemplateError(concat("the template writes nothing of message ", index + 1,
                               " (assistant), so its tokens cannot be found; mark them with "
                               "{% generation %} blocks in the template"));
  }
  const size_t begin = is_prompted && prompt->size() <= words.begin ? prompt->size() : words.begin;
  const std::string_view after = std::string_view(whole).substr(words.end);
  if (is_last) {
    const bool is_alike = next && next->starts_with(std::string_view(whole).substr(0, words.end));
    return {begin, is_alike ? words.end + shared_tail(after, std::string_view(*next).substr(words.end))
                            : whole.size()};
  }
  const std::optional<std::string> other_through =
      try_render(render, first_messages(changed, index + 1), /*add_generation_prompt=*/false);
  if (!through || !other_through) {
    throw TemplateError(concat("the template does not render the conversation up to message ", index + 1,
                               " (assistant), so the end of that turn cannot be found; mark turns with "
                               "{% generation %} blocks in the template"));
  }
  const std::string_view tail = std::string_view(*through).substr(difference(*through, *other_through).end);
  return {begin, words.end + shared_tail(tail, after)};
}

}  // namespace

std::vector<AssistantTurn> find_assistant_turns(const OrderedJson& messages, const std::string& whole,
                                                const RenderMessages& render) {
  std::vector<AssistantTurn> turns;
  for (size_t i = 0; i < messages.size(); ++i) {
    if (messages[i].value("role", "") != "assistant") continue;
    const TextSpan turn = find_turn(messages, i, whole, render);
    turns.push_back({trimmed(turn, whole, messages[i]), static_cast<int64_t>(i)});
  }
  return turns;
}

}  // namespace fsdp::data
