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
    std::stable_sort(group->tokens.begin(), group->tokens.end(),
                     [](const auto& a, const auto& b) { return a.content.size() > b.content.size(); });
    if (std::count(group->begins.begin(), group->begins.end(), true) == 1) {
      group->only_byte = group->tokens[0].content.substr(0, 1);
    }
  }
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
    for (const auto& token : group.tokens) {
      if (text.substr(i).starts_with(token.content)) return {i, i + token.content.size(), token.id};
    }
  }
  return {};
}

AddedTokens::Match AddedTokens::find(std::string_view text, size_t from) const {
  Match plain = find_in(plain_, text, from);
  Match normalized = find_in(normalized_, text.substr(0, std::min(plain.begin, text.size())), from);
  return normalized.id >= 0 ? normalized : plain;
}

}  // namespace fsdp::data
