#include "data/bpe_tokenizer.h"

#include <algorithm>

#include "data/byte_level.h"
#include "data/utf8.h"
#include "util/error.h"

namespace fsdp::data {
namespace {

/// How far from the end a good place for a cut is looked for.
constexpr size_t kCutSearchBytes = 1 << 16;
/// How much is split at once of a text whose normalization form is another one.
constexpr size_t kFormedStepBytes = 1 << 12;

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

/// Those that are found in raw text, or those that are found in normalized text, as they are there.
std::vector<Vocabulary::AddedToken> added_tokens(const Vocabulary& vocabulary, bool in_normalized_text) {
  std::vector<Vocabulary::AddedToken> chosen;
  for (Vocabulary::AddedToken& token : vocabulary.matched_tokens()) {
    const bool normalizes = token.normalized && !vocabulary.normalizer.empty();
    if (normalizes != in_normalized_text) continue;
    if (normalizes) token.content = FormedText(token.content, vocabulary.normalizer[0].form).text();
    chosen.push_back(std::move(token));
  }
  return chosen;
}

}  // namespace

struct BpeTokenizer::Scratch {
  SplitPattern::Scratch pattern;
  PieceCache cache;
};

/// One call of encode() or encode_some().
class BpeTokenizer::Encoding {
 public:
  Encoding(const BpeTokenizer& tokenizer, Scratch& scratch, std::vector<int64_t>& ids)
      : tokenizer_(tokenizer), scratch_(scratch), ids_(ids) {}

  /// Encodes a text between added tokens up to a place at or after `stop` where it may be cut; when it goes
  /// on, as far as is certain. Returns that place.
  size_t segment(std::string_view text, size_t stop, bool goes_on) {
    size_t done = 0;
    while (done < text.size()) {
      size_t valid = valid_utf8_prefix(text.substr(done));
      if (valid > 0) {
        bool run_goes_on = goes_on && done + valid == text.size();
        size_t run_stop = stop > done ? stop - done : 0;
        std::string_view run = text.substr(done, valid);
        size_t consumed =
            tokenizer_.form_ ? formed_run(run, run_stop, run_goes_on) : split(0, run, run_stop, run_goes_on);
        done += consumed;
        if (done >= stop || consumed < valid) return done;
      } else {
        piece(text.substr(done, 1));
        if (++done >= stop) return done;
      }
    }
    return done;
  }

 private:
  /// A text that is split in its normalization form.
  size_t formed_run(std::string_view text, size_t stop, bool goes_on) {
    // What follows could change the rest.
    if (goes_on) text = text.substr(0, last_form_boundary(text));
    FormedText formed(text, *tokenizer_.form_);
    if (tokenizer_.normalized_added_.longest_bytes() > 0) {
      between_normalized_tokens(formed.text());
      return text.size();
    }
    if (!formed.changed()) return split(0, text, stop, goes_on);
    // Where a piece ends amid what changed, the raw text cannot be cut.
    size_t done = 0, cut = 0, ids_at_cut = ids_.size();
    const size_t end = formed.place_of(stop);
    while (done < formed.text().size() && cut < stop) {
      const size_t step = std::min(std::max(end, done + 1) - done, kFormedStepBytes);
      const size_t consumed = split(0, formed.text().substr(done), step, goes_on);
      if (consumed == 0) break;
      done += consumed;
      if (auto place = formed.raw_place(done)) {
        cut = *place;
        ids_at_cut = ids_.size();
      }
    }
    ids_.resize(ids_at_cut);
    return cut;
  }

  void between_normalized_tokens(std::string_view text) {
    AddedTokens::Search tokens(tokenizer_.normalized_added_, text);
    for (size_t done = 0; done < text.size();) {
      AddedTokens::Match token = tokens.next(done);
      const bool found = token.id >= 0;
      std::string_view segment = text.substr(done, (found ? token.begin : text.size()) - done);
      split(0, segment, segment.size(), false);
      if (!found) return;
      ids_.push_back(token.id);
      done = token.end;
    }
  }

  /// Pieces of the level's split, each of which the next level splits as a text of its own.
  size_t split(size_t level, std::string_view text, size_t stop, bool goes_on) {
    if (level == tokenizer_.splits_.size()) {
      if (goes_on) return 0;
      piece(text);
      return text.size();
    }
    const Split& rule = tokenizer_.splits_[level];
    size_t done = 0;
    while (done < text.size() && (done < stop || level > 0)) {
      SplitPattern::Match match;
      auto found = rule.pattern.find(text.substr(done), goes_on, scratch_.pattern, match);
      if (found == SplitPattern::Found::kUncertain || (found == SplitPattern::Found::kNone && goes_on)) break;
      if (found == SplitPattern::Found::kNone) match = {text.size() - done, text.size() - done};
      if (match.begin > 0 && !rule.matches_only) next_level(level, text.substr(done, match.begin));
      if (match.end > match.begin) {
        next_level(level, text.substr(done + match.begin, match.end - match.begin));
      }
      done += match.end;
    }
    return done;
  }

  void next_level(size_t level, std::string_view text) {
    if (level + 1 == tokenizer_.splits_.size()) {
      piece(text);
    } else {
      split(level + 1, text, text.size(), false);
    }
  }

  void piece(std::string_view text) { tokenizer_.merger_.encode(text, scratch_.cache, ids_); }

  const BpeTokenizer& tokenizer_;
  Scratch& scratch_;
  std::vector<int64_t>& ids_;
};

BpeTokenizer::BpeTokenizer(const Vocabulary& vocabulary)
    : name_(vocabulary.source),
      merger_(vocabulary),
      added_(added_tokens(vocabulary, false)),
      normalized_added_(added_tokens(vocabulary, true)),
      add_prefix_space_(vocabulary.add_prefix_space),
      ids_(vocabulary.tokens) {
  if (!vocabulary.normalizer.empty()) form_ = vocabulary.normalizer[0].form;
  for (const auto& split : vocabulary.splits) {
    splits_.push_back({SplitPattern(split.pattern, split.literal), split.matches_only});
  }
  auto keep = [this](int64_t id, std::string bytes) {
    if (id >= vocab_size()) bytes_.resize(static_cast<size_t>(id) + 1);
    bytes_[static_cast<size_t>(id)] = std::move(bytes);
  };
  for (const auto& [token, id] : vocabulary.tokens) keep(id, symbols_to_bytes(token).value_or(token));
  for (const auto& token : vocabulary.added) {
    keep(token.id, token.content);
    ids_[token.content] = token.id;
  }
  if (!vocabulary.end_of_text.empty()) end_of_text_ = id_of(vocabulary.end_of_text);
}

BpeTokenizer::~BpeTokenizer() = default;

void BpeTokenizer::encode(std::string_view text, std::vector<int64_t>& ids) const {
  encode_up_to(text, text.size(), false, ids);
}

size_t BpeTokenizer::encode_some(std::string_view text, size_t stop, std::vector<int64_t>& ids) const {
  if (never_cut()) return 0;
  return encode_up_to(text, std::min(stop, text.size()), true, ids);
}

size_t BpeTokenizer::encode_up_to(std::string_view text, size_t stop, bool goes_on,
                                  std::vector<int64_t>& ids) const {
  std::unique_ptr<Scratch> scratch = scratch_.take();
  Encoding encoding(*this, *scratch, ids);
  // Where the text goes on, what could be the beginning of an added token or of a character is not certain.
  size_t certain = text.size();
  if (goes_on) {
    certain -= std::min(certain, std::max(added_.longest_bytes(), size_t{1}) - 1);
    certain = std::min(certain, text.size() - incomplete_utf8_tail(text));
    certain -= incomplete_utf8_tail(text.substr(0, certain));
  }
  size_t done = 0;
  bool cut = false;
  AddedTokens::Search tokens(added_, text);
  while (!cut && done < text.size() && (done < stop || !goes_on)) {
    AddedTokens::Match token = tokens.next(done);
    // A longer one might begin there.
    bool found = token.id >= 0 && (!goes_on || token.begin < certain);
    size_t end = found ? token.begin : goes_on ? std::max(certain, done) : text.size();
    std::string_view segment = text.substr(done, end - done);
    size_t consumed = 0;
    if (!segment.empty() && add_prefix_space_ && !segment.starts_with(' ')) {
      std::string prefixed = util::concat(' ', segment);
      encoding.segment(prefixed, prefixed.size(), false);
      consumed = segment.size();
    } else {
      size_t segment_stop = goes_on ? stop - done : segment.size();
      consumed = encoding.segment(segment, std::min(segment_stop, segment.size()), goes_on && !found);
    }
    done += consumed;
    cut = consumed < segment.size() || !found || (goes_on && done >= stop);
    if (cut) break;
    ids.push_back(token.id);
    done = token.end;
  }
  scratch_.give_back(std::move(scratch));
  return done;
}

size_t BpeTokenizer::likely_cut(std::string_view text) const {
  if (never_cut()) return 0;
  size_t lowest = text.size() > kCutSearchBytes ? text.size() - kCutSearchBytes : 0;
  for (char behind : {'\n', ' '}) {
    for (size_t i = text.size(); i > lowest + 1; --i) {
      if (text[i - 1] == behind && is_letter(text[i - 2])) return i - 1;
    }
  }
  return text.size() - incomplete_utf8_tail(text);
}

std::optional<std::string> BpeTokenizer::bytes_of(int64_t id, bool /*begins*/) const {
  if (id < 0 || id >= vocab_size() || !bytes_[static_cast<size_t>(id)]) {
    util::fail(util::ErrorKind::kData, "the id ", id, " is no token of the vocabulary ", name_, " (0 to ",
               vocab_size() - 1, "); decode it with the tokenizer that made it");
  }
  return bytes_[static_cast<size_t>(id)];
}

std::optional<int64_t> BpeTokenizer::id_of(const std::string& token) const {
  auto found = ids_.find(token);
  return found == ids_.end() ? std::nullopt : std::optional(found->second);
}

}  // namespace fsdp::data
