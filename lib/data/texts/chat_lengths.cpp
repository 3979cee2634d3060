#include "data/texts/chat_lengths.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/util/error.h"
#include "base/util/text.h"

namespace fsdp::data {

using util::with_commas;

void ChatLengths::add(int64_t tokens, const RowPlace& place) {
  lengths_.push_back(static_cast<int32_t>(std::min<int64_t>(tokens, std::numeric_limits<int32_t>::max())));
  if (longest_.size() == kNamed && longest_.back().tokens >= tokens) return;
  const auto behind =
      std::ranges::find_if(longest_, [&](const Long& other) { return other.tokens < tokens; });
  longest_.insert(behind, {tokens, to_string(place)});
  if (longest_.size() > kNamed) longest_.pop_back();
}

int64_t ChatLengths::at_most(double share) const {
  std::vector<int32_t> lengths = lengths_;
  const auto rank = static_cast<int64_t>(std::ceil(share * static_cast<double>(lengths.size())));
  const auto nth = lengths.begin() + std::max<int64_t>(rank - 1, 0);
  std::ranges::nth_element(lengths, nth);
  return *nth;
}

std::string ChatLengths::text() const {
  std::string named;
  for (size_t i = 0; i < longest_.size(); ++i) {
    named += concat(i == 0                     ? ""
                    : i + 1 == longest_.size() ? " and "
                                               : ", ",
                    with_commas(longest_[i].tokens), " (", longest_[i].place, ")");
  }
  return concat("half of the conversations have at most ", with_commas(at_most(0.5)),
                " tokens, 99 % at most ", with_commas(at_most(0.99)), "; the longest ",
                longest_.size() > 1 ? "have " : "has ", named);
}

}  // namespace fsdp::data
