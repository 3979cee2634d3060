#include <algorithm>

#include "base/util/error.h"
#include "data/tokenizers/added_tokens.h"
#include "data/tokenizers/piece_model.h"
#include "data/tokenizers/split_pattern.h"
#include "data/tokenizers/utf8.h"
#include "data/tokenizers/vocabulary_tokenizer.h"

namespace fsdp::data {
namespace {

/// Distance from the end within which likely_cut() searches a good position.
constexpr size_t kCutSearchBytes = 1 << 16;
/// Length of the part of a text that is split at once, if normalization changes it.
constexpr size_t kFormedStepBytes = 1 << 12;

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

/// Whether a token of normalized text can be searched in raw text: neither form makes a blank, a tab or a
/// line end of other characters, or joins them with a mark.
bool is_inert(const std::string& content, UnicodeForm form) {
  return (form == UnicodeForm::kNfc || form == UnicodeForm::kNfd) &&
         content.find_first_not_of(" \t\r\n") == std::string::npos;
}

/// Returns the added tokens for raw text, or those for normalized text in their normalized form.
std::vector<Vocabulary::AddedToken> added_tokens(const Vocabulary& vocabulary, bool in_normalized_text) {
  std::vector<Vocabulary::AddedToken> chosen;
  for (Vocabulary::AddedToken& token : vocabulary.matched_tokens()) {
    const bool normalizes = token.normalized && !vocabulary.normalizer.empty() &&
                            !is_inert(token.content, vocabulary.normalizer[0].form);
    if (normalizes != in_normalized_text) continue;
    if (normalizes) token.content = FormedText(token.content, vocabulary.normalizer[0].form).text();
    chosen.push_back(std::move(token));
  }
  return chosen;
}

class BpeTokenizer final : public VocabularyTokenizer {
 public:
  explicit BpeTokenizer(const Vocabulary& vocabulary)
      : VocabularyTokenizer(vocabulary),
        model_(make_byte_level_bpe(vocabulary)),
        added_(added_tokens(vocabulary, false)),
        normalized_added_(added_tokens(vocabulary, true)),
        add_prefix_space_(vocabulary.add_prefix_space) {
    if (!vocabulary.normalizer.empty()) form_ = vocabulary.normalizer[0].form;
    for (const auto& split : vocabulary.splits) {
      splits_.push_back({SplitPattern(split.pattern, split.literal), split.matches_only});
    }
    for (const auto& [token, id] : vocabulary.tokens) keep(id, symbols_to_bytes(token).value_or(token));
    for (const auto& token : vocabulary.added) keep(token.id, token.content);
  }

  void encode(std::string_view text, std::vector<int64_t>& ids) const override {
    encode_up_to(text, text.size(), false, ids);
  }

  size_t encode_some(std::string_view text, size_t stop, std::vector<int64_t>& ids) const override {
    if (never_cut()) return 0;
    return encode_up_to(text, std::min(stop, text.size()), true, ids);
  }

  size_t likely_cut(std::string_view text) const override {
    if (never_cut()) return 0;
    size_t lowest = text.size() > kCutSearchBytes ? text.size() - kCutSearchBytes : 0;
    for (char behind : {'\n', ' '}) {
      for (size_t i = text.size(); i > lowest + 1; --i) {
        if (text[i - 1] == behind && is_letter(text[i - 2])) return i - 1;
      }
    }
    return text.size() - incomplete_utf8_tail(text);
  }

 private:
  struct BpeScratch {
    SplitPattern::SplitScratch pattern;
    PieceCache cache;
  };
  struct BpeOutput {
    BpeScratch& scratch;
    std::vector<int64_t>& ids;
  };
  struct Split {
    SplitPattern pattern;
    bool matches_only;
  };

  /// Texts are not cut with add_prefix_space_, since the rest would get a blank too, and not if there are
  /// tokens of normalized text, which are searched in whole texts.
  bool never_cut() const { return add_prefix_space_ || normalized_added_.longest_bytes() > 0; }

  size_t encode_up_to(std::string_view text, size_t stop, bool goes_on, std::vector<int64_t>& ids) const {
    std::unique_ptr<BpeScratch> scratch = scratch_.take();
    BpeOutput out{*scratch, ids};
    scratch->pattern.begin_text(text);
    // If the text continues, its end is not certain: an added token or a character may begin there.
    size_t certain = text.size();
    if (goes_on) {
      certain -= std::min(certain, std::max(added_.longest_bytes(), size_t{1}) - 1);
      certain = std::min(certain, text.size() - incomplete_utf8_tail(text));
      certain -= incomplete_utf8_tail(text.substr(0, certain));
      // A token that begins there may include this white space.
      if (added_.any_strips_left()) certain = trimmed_right(text.substr(0, certain)).size();
    }
    size_t done = 0;
    AddedTokens::Search tokens(added_, text);
    while (!goes_on || (done < text.size() && done < stop)) {
      AddedTokens::Match token = tokens.next(done);
      // After `certain` a longer token may begin at the same position.
      // The white space of a token that reaches the end is not known either.
      bool found = token.id >= 0 && (!goes_on || (token.content_begin < certain && !token.is_open));
      size_t end = found     ? token.begin
                   : goes_on ? std::max(std::min(certain, token.begin), done)
                             : text.size();
      std::string_view part = text.substr(done, end - done);
      size_t consumed = 0;
      if (!part.empty() && add_prefix_space_ && !part.starts_with(' ')) {
        std::string prefixed = concat(' ', part);
        segment(prefixed, prefixed.size(), false, out);
        consumed = part.size();
      } else {
        size_t segment_stop = goes_on ? stop - done : part.size();
        consumed = segment(part, std::min(segment_stop, part.size()), goes_on && !found, out);
      }
      done += consumed;
      if (consumed < part.size() || !found || (goes_on && done >= stop)) break;
      ids.push_back(token.id);
      done = token.end;
    }
    scratch_.give_back(std::move(scratch));
    return done;
  }

  /// Encodes a text between added tokens up to a position at or after `stop` where it may be cut; if the text
  /// continues, only as far as is certain. Returns that position.
  size_t segment(std::string_view text, size_t stop, bool goes_on, BpeOutput& out) const {
    size_t done = 0;
    while (done < text.size()) {
      size_t valid = valid_utf8_prefix(text.substr(done));
      if (valid > 0) {
        bool run_goes_on = goes_on && done + valid == text.size();
        size_t run_stop = stop > done ? stop - done : 0;
        std::string_view run = text.substr(done, valid);
        size_t consumed =
            form_ ? formed_run(run, run_stop, run_goes_on, out) : split(0, run, run_stop, run_goes_on, out);
        done += consumed;
        if (done >= stop || consumed < valid) return done;
      } else {
        piece(text.substr(done, 1), out);
        if (++done >= stop) return done;
      }
    }
    return done;
  }

  /// Does the same for valid UTF-8 that is split in its normalization form.
  size_t formed_run(std::string_view text, size_t stop, bool goes_on, BpeOutput& out) const {
    // The rest may depend on the following text.
    if (goes_on) text = text.substr(0, last_form_boundary(text));
    FormedText formed(text, *form_);
    if (normalized_added_.longest_bytes() > 0) {
      normalized_added_.cut_out(formed.text(), out.ids, [&](std::string_view part, bool) {
        split(0, part, part.size(), false, out);
      });
      return text.size();
    }
    if (!formed.changed()) return split(0, text, stop, goes_on, out);
    // The raw text cannot be cut if a piece ends inside a change.
    size_t done = 0, cut = 0, ids_at_cut = out.ids.size();
    const size_t end = formed.place_of(stop);
    while (done < formed.text().size() && cut < stop) {
      const size_t step = std::min(std::max(end, done + 1) - done, kFormedStepBytes);
      const size_t consumed = split(0, formed.text().substr(done), step, goes_on, out);
      if (consumed == 0) break;
      done += consumed;
      if (auto place = formed.raw_place(done)) {
        cut = *place;
        ids_at_cut = out.ids.size();
      }
    }
    out.ids.resize(ids_at_cut);
    return cut;
  }

  /// Splits a text by the level's pattern; the next level splits each piece by itself.
  size_t split(size_t level, std::string_view text, size_t stop, bool goes_on, BpeOutput& out) const {
    if (level == splits_.size()) {
      if (goes_on) return 0;
      piece(text, out);
      return text.size();
    }
    const Split& rule = splits_[level];
    size_t done = 0;
    while (done < text.size() && (done < stop || level > 0)) {
      SplitPattern::Match match;
      auto found = rule.pattern.find(text.substr(done), goes_on, out.scratch.pattern, match);
      if (found == SplitPattern::MatchOutcome::kUncertain ||
          (found == SplitPattern::MatchOutcome::kNone && goes_on))
        break;
      if (found == SplitPattern::MatchOutcome::kNone) match = {text.size() - done, text.size() - done};
      if (match.begin > 0 && !rule.matches_only) next_level(level, text.substr(done, match.begin), out);
      if (match.end > match.begin) {
        next_level(level, text.substr(done + match.begin, match.end - match.begin), out);
      }
      done += match.end;
    }
    return done;
  }

  void next_level(size_t level, std::string_view text, BpeOutput& out) const {
    if (level + 1 == splits_.size()) {
      piece(text, out);
    } else {
      split(level + 1, text, text.size(), false, out);
    }
  }

  void piece(std::string_view text, BpeOutput& out) const {
    if (text.size() == 1) return model_(text, out.ids);  // faster than the cache
    out.scratch.cache.encode(model_, text, out.ids);
  }

  PieceModel model_;
  AddedTokens added_;
  std::optional<UnicodeForm> form_;
  AddedTokens normalized_added_;  ///< tokens that are searched in the text in its normalization form
  std::vector<Split> splits_;
  bool add_prefix_space_;
  mutable Pool<BpeScratch> scratch_;
};

}  // namespace

std::unique_ptr<Tokenizer> make_bpe_tokenizer(const Vocabulary& vocabulary) {
  return std::make_unique<BpeTokenizer>(vocabulary);
}

}  // namespace fsdp::data
