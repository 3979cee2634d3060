#include "data/chat/conversation_encoder.h"

#include <algorithm>
#include <utility>

#include "base/util/error.h"
#include "data/chat/chat_source.h"

namespace fsdp::data {
namespace {

/// Number of the first tokens of `ids` in a text up to `end`, and whether `end` is inside the next token.
struct Boundary {
  size_t tokens = 0;
  bool is_inside = false;
};

/// Finds a boundary without places, by comparing the tokens of the text up to `end` with all tokens.
Boundary boundary_at(const Tokenizer& tokenizer, std::string_view text, size_t end,
                     const std::vector<int64_t>& ids) {
  if (end == text.size()) return {.tokens = ids.size()};
  std::vector<int64_t> before;
  tokenizer.encode(text.substr(0, end), before);
  const auto shared = static_cast<size_t>(std::ranges::mismatch(before, ids).in1 - before.begin());
  return {.tokens = shared, .is_inside = shared < before.size()};
}

/// Returns the range of the tokens with any byte in the span.
TextSpan tokens_in(TextSpan span, const Tokenizer& tokenizer, std::string_view text,
                   const std::vector<int64_t>& ids, const std::optional<std::vector<TextSpan>>& places) {
  if (places) {
    const auto first =
        std::ranges::find_if(*places, [&](const TextSpan& place) { return place.end > span.begin; });
    const auto last =
        std::find_if(first, places->end(), [&](const TextSpan& place) { return place.begin >= span.end; });
    return {static_cast<size_t>(first - places->begin()), static_cast<size_t>(last - places->begin())};
  }
  const Boundary begin = boundary_at(tokenizer, text, span.begin, ids);
  const Boundary end = boundary_at(tokenizer, text, span.end, ids);
  return {begin.tokens, std::min(end.tokens + (end.is_inside ? 1 : 0), ids.size())};
}

/// Appends `begin` and the tokens of a text. `turns` are the spans of the text to be learnt, in order, whose
/// tokens get `turn_parts`.
void append_tokens(const Tokenizer& tokenizer, std::string_view text, const std::vector<TextSpan>& turns,
                   TurnParts turn_parts, const std::vector<int64_t>& begin, std::vector<int64_t>& ids,
                   std::vector<TokenPart>& parts) {
  std::vector<int64_t> own;
  tokenizer.encode(text, own);
  const std::optional<std::vector<TextSpan>> places = places_of(tokenizer, text, own);
  const size_t first = parts.size(), offset = first + begin.size();
  parts.resize(offset + own.size(), TokenPart::kContext);
  for (size_t i = 0; i < turns.size(); ++i) {
    const TextSpan tokens = tokens_in(turns[i], tokenizer, text, own, places);
    for (size_t k = tokens.begin; k < tokens.end; ++k) {
      parts[offset + k] = i + 1 == turns.size() ? turn_parts.last : turn_parts.earlier;
    }
  }
  if (parts.size() > first) parts[first] = TokenPart::kDocumentStart;
  ids.insert(ids.end(), begin.begin(), begin.end());
  ids.insert(ids.end(), own.begin(), own.end());
}

/// Returns the chat template of the options. Throws Error(kData) for a tokenizer without special tokens,
/// which would spell those of the template as text.
ChatTemplateSource checked_template(const ChatOptions& options, const Tokenizer& tokenizer,
                                    const std::string& tokenizer_name) {
  ChatTemplateSource source =
      find_chat_template(options.chat_template, tokenizer_name, options.chat_variables);
  if (options.chat_variables.find("_token") != std::string::npos) return source;
  for (const char* name : {"bos_token", "eos_token"}) {
    const auto found = source.variables.find(name);
    if (found == source.variables.end() || !found->is_string()) continue;
    const auto token = found->get<std::string>();
    std::vector<int64_t> ids;
    tokenizer.encode(token, ids);
    if (ids.size() == 1) continue;
    fail(ErrorKind::kData, "the tokenizer ", tokenizer.name(), " does not have the ", name, " ", token,
         " of chat templates as one token, but spells it by ", ids.size(),
         "; use the tokenizer.json of the model");
  }
  return source;
}

}  // namespace

std::optional<std::vector<TextSpan>> places_of(const Tokenizer& tokenizer, std::string_view text,
                                               const std::vector<int64_t>& ids) {
  std::vector<TextSpan> places;
  size_t at = 0;
  bool begins = true;
  for (const int64_t id : ids) {
    const std::optional<std::string> bytes = tokenizer.bytes_of(id, begins);
    std::string_view written = bytes ? std::string_view(*bytes) : std::string_view();
    if (bytes) begins = false;
    // Some tokenizers add a blank before the text that follows a special token.
    if (!text.substr(at).starts_with(written) && written.starts_with(' ')) written.remove_prefix(1);
    if (!text.substr(at).starts_with(written)) return std::nullopt;
    places.push_back({at, at + written.size()});
    at += written.size();
  }
  if (at != text.size()) return std::nullopt;
  return places;
}

ConversationEncoder::ConversationEncoder(const ChatOptions& options, const Tokenizer& tokenizer,
                                         const std::string& tokenizer_name)
    : tokenizer_(tokenizer),
      template_(checked_template(options, tokenizer, tokenizer_name), options.threads, options.limits) {
  if (!options.spell_markers && tokenizer_name != "bytes")
    markers_ = std::make_unique<MarkerCheck>(tokenizer, template_.name());
}

void ConversationEncoder::append(const ChatRow& row, TurnParts turns, std::vector<int64_t>& ids,
                                 std::vector<TokenPart>& parts) const {
  ChatTemplate::Rendered rendered;
  try {
    rendered = template_.render(row.messages, row.tools);
  } catch (const TemplateError& error) {
    throw RowError(concat("cannot be rendered: ", error.what()));
  }
  if (markers_) markers_->check(rendered.text, row.messages, row.tools);
  if (!rendered.dropped_calls.empty()) {
    throw RowError(concat("has tool_calls in message ", rendered.dropped_calls.front() + 1,
                          ", which the chat template ", template_.name(),
                          " does not write; choose a template that writes tool calls"));
  }
  std::vector<TextSpan> spans;
  for (const AssistantTurn& turn : rendered.turns) {
    if (turn.message < 0 && row.has_weights) {
      throw RowError(
          concat("leaves messages out by their weight or as a prompt, but the blocks {% generation %} "
                 "of the chat template ",
                 template_.name(), " are not one for each message of the assistant"));
    }
    if (turn.message < 0 || row.learnt[static_cast<size_t>(turn.message)]) spans.push_back(turn.span);
  }
  if (spans.empty()) {
    throw RowError(concat("has no tokens of the assistant, because the chat template ", template_.name(),
                          " writes none of its messages"));
  }
  append_tokens(tokenizer_, rendered.text, spans, turns, {}, ids, parts);
}

CompletionEncoder::CompletionEncoder(const ChatOptions& options, const Tokenizer& tokenizer)
    : tokenizer_(tokenizer),
      begin_(options.begin_of_text ? tokenizer.begin_of_text() : std::vector<int64_t>{}) {}

void CompletionEncoder::append(std::string_view prompt, std::string_view completion, TokenPart part,
                               std::vector<int64_t>& ids, std::vector<TokenPart>& parts) const {
  if (completion.empty()) throw RowError("has an empty completion");
  const std::string whole = concat(prompt, completion);
  append_tokens(tokenizer_, whole, {{prompt.size(), whole.size()}}, {part, part}, begin_, ids, parts);
  const std::optional<int64_t> end = tokenizer_.end_of_text();
  if (!end || (!ids.empty() && ids.back() == *end)) return;
  ids.push_back(*end);
  parts.push_back(part);
}

}  // namespace fsdp::data
