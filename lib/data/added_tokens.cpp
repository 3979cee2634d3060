#include "data/added_tokens.h"

#include <algorithm>

namespace fsdp::data {

AddedTokens::AddedTokens(const std::vector<Vocabulary::AddedToken>& tokens) {
  for (const auto& token : tokens) {
    Group& group = token.normalized ? normalized_ : plain_;
    group.tokens.push_back(token);
    group.begins[static_cast<unsigned char>(token.content[0])] = true;
    longest_bytes_ = std::max(longest_bytes_, token.content.size());
  }
  for (Group* group : {&plain_, &normalized_}) {
    // Of several tokens with the same content the first counts.
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

/// Narrows the tokens byte by byte to those that begin as the text does.
const Vocabulary::AddedToken* AddedTokens::longest_at(const Group& group, std::string_view text) {
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

AddedTokens::Match AddedTokens::find_in(const Group& group, std::string_view text, size_t from) {
  if (group.tokens.empty()) return {};
  for (size_t i = from; i < text.size(); ++i) {
    if (!group.only_byte.empty()) {
      i = text.find(group.only_byte[0], i);
      if (i == std::string_view::npos) return {};
    } else if (!group.begins[static_cast<unsigned char>(text[i])]) {
      continue;
    }
    if (const auto* token = longest_at(group, text.substr(i))) {
      return {i, i + token->content.size(), token->id};
    }
  }
  return {};
}

AddedTokens::Match AddedTokens::Search::next(size_t from) {
  // Kept from call to call: the text before it is searched once, however many normalized tokens are in it.
  if (!is_known_ || plain_.begin < from) plain_ = find_in(tokens_.plain_, text_, from);
  is_known_ = true;
  Match normalized =
      find_in(tokens_.normalized_, text_.substr(0, std::min(plain_.begin, text_.size())), from);
  return normalized.id >= 0 ? normalized : plain_;
}

}  // namespace fsdp::data
