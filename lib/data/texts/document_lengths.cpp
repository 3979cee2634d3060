#include "data/texts/document_lengths.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/util/error.h"
#include "base/util/text.h"

namespace fsdp::data {
namespace {

using util::with_commas;

constexpr int kExactBits = std::bit_width(static_cast<uint64_t>(DocumentLengths::kExactTokens)) - 1;
constexpr size_t kBucketsADoubling = DocumentLengths::kExactTokens / 2;

/// Returns the bucket of a length: one for each length up to kExactTokens, then kBucketsADoubling for each
/// doubling.
size_t bucket_of(int64_t tokens) {
  const int shift = std::max(static_cast<int>(std::bit_width(static_cast<uint64_t>(tokens))) - kExactBits, 0);
  return static_cast<size_t>(shift) * kBucketsADoubling + static_cast<size_t>(tokens >> shift);
}

/// Returns the largest length in a bucket.
int64_t largest_in(size_t bucket) {
  if (bucket < 2 * kBucketsADoubling) return static_cast<int64_t>(bucket);
  const size_t shift = bucket / kBucketsADoubling - 1;
  return (static_cast<int64_t>(bucket - shift * kBucketsADoubling + 1) << shift) - 1;
}

std::string percent(int64_t part, int64_t all) {
  return util::fixed(100.0 * static_cast<double>(part) / static_cast<double>(all), 1) + " %";
}

}  // namespace

void DocumentLengths::add(int64_t tokens, const RowPlace& place) {
  ++documents_;
  tokens_ += tokens;
  const size_t bucket = bucket_of(tokens);
  if (counts_.size() <= bucket) counts_.resize(bucket + 1);
  ++counts_[bucket];
  int64_t row = kShortestRow + 1;  // a row of N targets has N + 1 tokens
  for (size_t i = 0; i < kRows && tokens > row; ++i, row = 2 * row - 1) {
    ++cuts_[i].documents;
    cuts_[i].tokens += tokens - row;
  }
  if (longest_.size() == kNamed && longest_.back().tokens >= tokens) return;
  const auto behind =
      std::ranges::find_if(longest_, [&](const Long& other) { return other.tokens < tokens; });
  longest_.insert(behind, {tokens, to_string(place)});
  if (longest_.size() > kNamed) longest_.pop_back();
}

int64_t DocumentLengths::at_most(double share) const {
  const auto rank = std::max<int64_t>(std::llround(std::ceil(share * static_cast<double>(documents_))), 1);
  int64_t shorter = 0;
  for (size_t bucket = 0; bucket < counts_.size(); ++bucket) {
    shorter += counts_[bucket];
    if (shorter >= rank) return std::min(largest_in(bucket), longest());
  }
  return longest();
}

std::string DocumentLengths::cuts(const std::string& noun) const {
  std::string lines;
  for (size_t i = 0; i < kRows && cuts_[i].documents > 0; ++i) {
    lines += concat("\ndata.sequence_length = ", kShortestRow << i, " would cut ",
                    with_commas(cuts_[i].documents), " of ", with_commas(documents_), " ", noun, " (",
                    percent(cuts_[i].documents, documents_), "), with ", with_commas(cuts_[i].tokens),
                    " tokens (", percent(cuts_[i].tokens, tokens_), ") behind the cuts");
  }
  return lines;
}

std::string DocumentLengths::text(const std::string& noun) const {
  std::string named;
  for (size_t i = 0; i < longest_.size(); ++i) {
    named += concat(i == 0                     ? ""
                    : i + 1 == longest_.size() ? " and "
                                               : ", ",
                    with_commas(longest_[i].tokens), " (", longest_[i].place, ")");
  }
  return concat("half of the ", noun, " have at most ", with_commas(at_most(0.5)), " tokens, 99 % at most ",
                with_commas(at_most(0.99)), "; the longest ", longest_.size() > 1 ? "have " : "has ", named,
                cuts(noun));
}

}  // namespace fsdp::data
