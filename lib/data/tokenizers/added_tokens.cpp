#include "data/tokenizers/added_tokens.h"

#include "data/tokenizers/utf8.h"

namespace fsdp::data {

AddedTokens::AddedTokens(const std::vector<Vocabulary::AddedToken>& tokens) {
  for (const auto& token : tokens) {
    TokenGroup& group = token.normalized ? normalized_ : plain_;
    group.tokens.push_back(token);
    group.begins[static_cast<unsigned char>(token.content[0])] = true;
    longest_bytes_ = std::max(longest_bytes_, token.content.size());
    strips_left_ = strips_left_ || token.lstrip;
  }
  for (TokenGroup* group : {&plain_, &normalized_}) {
    // If several tokens have the same content, the first counts.
    std::stable_sort(group->tokens.begin(), group->tokens.end(),
                     [](const auto& a, const auto& b) { return a.content < b.content; });
    const auto end = std::unique(group->tokens.begin(), group->tokens.end(),
                                 [](const auto& a, const auto& b) { return a.content == b.content; });
    group->tokens.erase(end, group->tokens.end());
    if (std::count(group->begins.begin(), group->begins.end(), true) == 1) {
      group->only_byte = group->tokens[0].content.substr(0, 1);
    }
  }
}

/// Returns the longest token at the beginning of `text`, by narrowing the tokens byte by byte.
const Vocabulary::AddedToken* AddedTokens::longest_at(const TokenGroup& group, std::string_view text) {
  const Vocabulary::AddedToken* longest = nullptr;
  auto first = group.tokens.begin(), last = group.tokens.end();
  for (size_t length = 0; length < text.size() && first != last; ++length) {
    const auto byte = static_cast<unsigned char>(text[length]);
    const auto at = [length](const Vocabulary::AddedToken& token) {
      // A token that ends here comes first.
      return token.content.size() == length ? -1 : static_cast<unsigned char>(token.content[length]);
    };
    first = std::partition_point(first, last, [&](const auto& token) { return at(token) < byte; });
    last = std::partition_point(first, last, [&](const auto& token) { return at(token) == byte; });
    if (first != last && first->content.size() == length + 1) longest = &*first;
  }
  return longest;
}

AddedTokens::Search::FoundToken AddedTokens::Search::find_in(const TokenGroup& group, std::string_view text,
                                                             size_t from) const {
  if (group.tokens.empty()) return {};
  for (size_t i = from; i < text.size(); ++i) {
    if (!group.only_byte.empty()) {
      i = text.find(group.only_byte[0], i);
      if (i == std::string_view::npos) return {};
    } else if (!group.begins[static_cast<unsigned char>(text[i])]) {
      continue;
    }
    if (const auto* token = longest_at(group, text.substr(i))) return {i, i + token->content.size(), token};
  }
  return {};
}

/// Adds white space to a match. `text` ends where the search for the token ended.
AddedTokens::Match AddedTokens::Search::with_white_space(const FoundToken& found, std::string_view text,
                                                         size_t from) const {
  if (found.token == nullptr) return {};
  Match match{.begin = std::max(found.begin, from),
              .end = found.end,
              .id = found.token->id,
              .content_begin = found.begin};
  if (found.token->lstrip) match.begin = from + trimmed_right(text.substr(from, match.begin - from)).size();
  if (found.token->rstrip) {
    const std::string_view rest = trimmed_left(text.substr(found.end));
    match.end = text.size() - rest.size();
    match.is_open = incomplete_utf8_tail(rest) == rest.size();
  }
  return match;
}

AddedTokens::Match AddedTokens::Search::next(size_t from) {
  // plain_ is kept between calls, so that the text before it is searched once for all normalized tokens.
  if (!is_known_) plain_ = find_in(tokens_.plain_, text_, plain_from_);
  is_known_ = true;
  const Match plain = with_white_space(plain_, text_, from);
  const std::string_view before = text_.substr(0, std::min(plain.begin, text_.size()));
  const FoundToken normalized = find_in(tokens_.normalized_, before, normalized_from_);
  if (normalized.token != nullptr) {
    normalized_from_ = normalized.end;
    return with_white_space(normalized, before, from);
  }
  if (plain.id >= 0) {
    is_known_ = false;
    plain_from_ = plain_.end;
    normalized_from_ = plain.end;
  }
  return plain;
}

}  // namespace fsdp::data
