#include "data/chat/chat_session.h"

#include <string_view>
#include <utility>

#include "base/util/error.h"

namespace fsdp::data {

namespace {

OrderedJson message(const char* role, const std::string& text) { return {{"role", role}, {"content", text}}; }

/// Whether a token's text looks like that of a special token.
bool is_marker(const std::string& text) {
  return text.size() > 2 &&
         ((text.front() == '<' && text.back() == '>') || (text.front() == '[' && text.back() == ']'));
}

}  // namespace

ChatSession::ChatSession(const Tokenizer& tokenizer, ChatTemplateSource source, const std::string& system)
    : tokenizer_(tokenizer), template_(std::move(source)) {
  if (!system.empty()) messages_.push_back(message("system", system));
  kept_ = messages_.size();
}

std::vector<int64_t> ChatSession::tokens_of(const OrderedJson& messages) const {
  std::vector<int64_t> ids;
  try {
    tokenizer_.encode(template_.render(messages, nullptr, /*add_generation_prompt=*/true).text, ids);
  } catch (const TemplateError& error) {
    fail(ErrorKind::kData, "the conversation cannot be rendered: ", error.what());
  }
  return ids;
}

std::vector<int64_t> ChatSession::ask(const std::string& text, int64_t most) {
  OrderedJson messages = messages_;
  messages.push_back(message("user", text));
  int64_t forgotten = 0;
  for (;;) {
    std::vector<int64_t> ids = tokens_of(messages);
    if (static_cast<int64_t>(ids.size()) <= most) {
      messages_ = std::move(messages);
      forgotten_ += forgotten;
      return ids;
    }
    if (messages.size() < kept_ + 3) {
      fail(ErrorKind::kUsage, "the message must have at most ", most,
           " tokens with its markers and the system prompt, but has ", ids.size(), "; shorten it");
    }
    // A question goes with its answer.
    const auto oldest = messages.begin() + static_cast<std::ptrdiff_t>(kept_);
    messages.erase(oldest, oldest + 2);
    forgotten += 2;
  }
}

void ChatSession::answer(const std::string& text) { messages_.push_back(message("assistant", text)); }

std::vector<int64_t> ChatSession::ends_of_answers() const {
  const OrderedJson messages = OrderedJson::array({message("user", "a"), message("assistant", "b")});
  try {
    const ChatTemplate::Rendered rendered = template_.render(messages);
    if (rendered.turns.empty()) return {};
    const TextSpan span = rendered.turns.back().span;
    std::vector<int64_t> ids;
    tokenizer_.encode(std::string_view(rendered.text).substr(span.begin, span.end - span.begin), ids);
    // An ordinary token at the end would be the answer's own.
    if (ids.size() < 2) return {};
    const auto bytes = tokenizer_.bytes_of(ids.back(), /*begins=*/false);
    if (!bytes || is_marker(*bytes)) return {ids.back()};
  } catch (const TemplateError&) {
    // Found out when the first question is asked.
  }
  return {};
}

}  // namespace fsdp::data
