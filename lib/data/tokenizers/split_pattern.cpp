#include "data/tokenizers/split_pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <array>
#include <bitset>
#include <cstring>

#include "base/util/error.h"
#include "base/util/text.h"
#include "data/tokenizers/unicode_additions.h"
#include "data/tokenizers/utf8.h"

namespace fsdp::data {
namespace {

/// Unicode's White_Space, as the inside of a class.
constexpr const char* kWhiteSpace = "\\t-\\r\\x{85}\\p{Z}";

std::string lower_case(std::string_view text) {
  std::string lower;
  for (const char c : text) {
    if (c != '_') lower += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return lower;
}

/// Returns the characters of a category ("L", "Lu") or script that PCRE2 may lack, as the inside of a class.
std::string additions_to(const std::string& property) {
  const std::string name = lower_case(property);
  std::string ranges;
  uint32_t first = 1, last = 0;  // the range under construction
  auto end_range = [&] {
    if (first > last) return;
    ranges += util::printed("\\x{%x}", first);
    if (first < last) ranges += util::printed("-\\x{%x}", last);
  };
  for (const UnicodeAddition& addition : kUnicodeAdditionTable) {
    const std::string category = lower_case(addition.category);
    const bool has_it = name.size() > 2 ? lower_case(addition.script) == name : category.starts_with(name);
    if (!has_it) continue;
    if (first > last || addition.first != last + 1) {
      end_range();
      first = addition.first;
    }
    last = addition.last;
  }
  end_range();
  return ranges;
}

/// Whether the text has one of these characters. The first two bytes in UTF-8 rule out most other characters.
bool has_additions(std::string_view text) {
  static const auto kBeginnings = [] {
    std::bitset<1 << 16> beginnings;
    for (const UnicodeAddition& addition : kUnicodeAdditionTable) {
      for (uint32_t code = addition.first; code <= addition.last; ++code) {
        std::string bytes;
        append_utf8(bytes, code);
        beginnings.set(static_cast<unsigned char>(bytes[0]) << 8 | static_cast<unsigned char>(bytes[1]));
      }
    }
    return beginnings;
  }();
  for (size_t i = 0; i + 1 < text.size(); ++i) {
    const auto first = static_cast<unsigned char>(text[i]);
    if (first < 0xe0 || !kBeginnings[first << 8 | static_cast<unsigned char>(text[i + 1])]) continue;
    const uint32_t code = first_code_point(text.substr(i)).value;
    const auto* const found =
        std::lower_bound(kUnicodeAdditionTable.begin(), kUnicodeAdditionTable.end(), code,
                         [](const UnicodeAddition& each, uint32_t value) { return each.last < value; });
    if (found != kUnicodeAdditionTable.end() && code >= found->first) return true;
  }
  return false;
}

/// Translates a pattern from its beginning to its end.
class Translator {
 public:
  Translator(const std::string& pattern, bool additions) : pattern_(pattern), additions_(additions) {}

  std::string run() {
    if (valid_utf8_prefix(pattern_) != pattern_.size()) refuse("bytes that are not UTF-8");
    while (i_ < pattern_.size()) {
      char c = pattern_[i_];
      if (c == '\\') {
        escape();
      } else if (in_class_) {
        class_character(c);
      } else {
        character(c);
      }
    }
    return out_;
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const {
    fail(ErrorKind::kData, "the split pattern ", for_message(pattern_), " has ", for_message(what),
         ", which is not supported; use a tokenizer whose pattern does without it");
  }

  bool next_is(std::string_view text, size_t offset = 0) const {
    return std::string_view(pattern_).substr(i_ + offset).starts_with(text);
  }

  void take(size_t count) {
    out_.append(pattern_, i_, count);
    i_ += count;
  }

  void escape() {
    if (i_ + 1 == pattern_.size()) refuse("a backslash at its end");
    char c = pattern_[i_ + 1];
    if (c == 's' || (c == 'S' && !in_class_)) {
      i_ += 2;
      out_ += in_class_ ? kWhiteSpace : concat(c == 's' ? "[" : "[^", kWhiteSpace, "]");
    } else if (c == 'p' || c == 'P') {
      property();
    } else if (c == 'd' || c == 'D') {
      i_ += 2;
      write_property("Nd", c == 'D');
    } else if (std::strchr("rnt", c) != nullptr || std::ispunct(static_cast<unsigned char>(c))) {
      take(2);
    } else if (next_is("x{", 1)) {
      size_t end = pattern_.find('}', i_);
      if (end == std::string::npos) refuse("\\x{ without an end");
      take(end + 1 - i_);
    } else {
      refuse(concat("\\", c));
    }
  }

  void property() {
    size_t end = pattern_.find('}', i_);
    if (!next_is("{", 2) || end == std::string::npos) refuse("\\p without braces");
    std::string name = pattern_.substr(i_ + 3, end - i_ - 3);
    bool negated = name.starts_with("^");
    std::string bare = negated ? name.substr(1) : name;
    for (char c : bare) {
      if (!std::isalpha(static_cast<unsigned char>(c)) && c != '_') refuse("\\p{" + name + "}");
    }
    negated = negated != (pattern_[i_ + 1] == 'P');
    i_ = end + 1;
    write_property(bare, negated);
  }

  /// Translates a category or script. Categories are the same for both engines, except for the version of
  /// Unicode. A script is written so that PCRE2 ignores its script extensions.
  void write_property(const std::string& name, bool negated) {
    const std::string additions = additions_ ? additions_to(name) : "";
    if (in_class_ && negated && !additions.empty()) refuse("the complement of " + name + " in a class");
    const std::string bare =
        concat(negated && additions.empty() ? "\\P{" : "\\p{", name.size() > 2 ? "sc:" : "", name, "}");
    if (in_class_ || additions.empty()) {
      out_ += bare + additions;
    } else {
      out_ += concat(negated ? "[^" : "[", bare, additions, "]");
    }
  }

  void class_character(char c) {
    if (c == '[') refuse("a class within a class");
    if (next_is("&&")) refuse("&& in a class");
    if (c == ']') in_class_ = false;
    take(1);
  }

  void character(char c) {
    if (c == '^') refuse("the anchor ^");
    if (c == '$') {  // in Oniguruma, $ matches at every line end
      out_ += "(?=\\n|\\z)";
      ++i_;
      return;
    }
    if (c == '[') {
      in_class_ = true;
      take(next_is("[^") ? 2 : 1);
      if (next_is("]")) refuse("a ] at the beginning of a class");
      return;
    }
    if (next_is("(?")) {
      for (std::string_view group : {"(?:", "(?i:", "(?!", "(?=", "(?>"}) {
        if (next_is(group)) return take(group.size());
      }
      refuse("the group " + pattern_.substr(i_, 4));
    }
    if (next_is("(*")) refuse("(*");
    if (next_is("{,")) refuse("{,");
    if (next_is("}+") || next_is("}?")) refuse(concat("}", pattern_[i_ + 1]));
    take(1);
  }

  const std::string& pattern_;
  bool additions_;
  std::string out_;
  size_t i_ = 0;
  bool in_class_ = false;
};

std::string pcre2_text(int code) {
  std::array<PCRE2_UCHAR, 256> text{};
  pcre2_get_error_message(code, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

/// Size of PCRE2's stack, enough for patterns that backtrack over a text of many MiB.
constexpr size_t kMaxStackBytes = size_t{256} << 20;

/// A search first examines this much of a text, with at most this many steps from each position.
constexpr size_t kFirstBytes = 1024;
constexpr uint32_t kFirstSteps = 256;
/// Limit on the effort of searches that need more, in bytes that are examined again: a constant, and a number
/// for each byte of text. Steps count as a fraction of a byte.
constexpr int64_t kFreeEffort = int64_t{1} << 20, kEffortPerByte = 64;
constexpr uint32_t kStepsPerByte = 32;

}  // namespace

SplitPattern::SplitScratch::SplitScratch()
    : data_(pcre2_match_data_create(1, nullptr), pcre2_match_data_free),
      context_(pcre2_match_context_create(nullptr), pcre2_match_context_free) {
  FSDP_CHECK(data_ != nullptr && context_ != nullptr, "out of memory");
}

void SplitPattern::SplitScratch::begin_text(std::string_view text) {
  bytes_ = text.size();
  effort_left_ = kFreeEffort + kEffortPerByte * static_cast<int64_t>(text.size());
  is_newer_ = has_additions(text);
}

void SplitPattern::SplitScratch::spend(size_t bytes) {
  effort_left_ -= static_cast<int64_t>(bytes);
  if (effort_left_ >= 0) return;
  fail(ErrorKind::kData, "the split pattern of the tokenizer takes too many steps on a text of ", bytes_,
       " bytes; cut the text into smaller documents or use another tokenizer");
}

std::string SplitPattern::translate(const std::string& pattern, bool additions) {
  return Translator(pattern, additions).run();
}

SplitPattern::SplitPattern(const std::string& pattern, bool literal) {
  const std::string text = literal ? pattern : translate(pattern);
  if (literal && valid_utf8_prefix(text) != text.size()) {
    fail(ErrorKind::kData, "the split pattern ", for_message(pattern),
         " is not UTF-8; repair the tokenizer's file");
  }
  full_ = compile(pattern, text, literal);
  const std::string plain = literal ? pattern : translate(pattern, /*additions=*/false);
  plain_ = plain == text ? full_ : compile(pattern, plain, literal);
}

SplitPattern::Compiled SplitPattern::compile(const std::string& pattern, const std::string& text,
                                             bool literal) {
  Compiled out;
  uint32_t options = PCRE2_UTF | PCRE2_NO_UTF_CHECK | PCRE2_USE_OFFSET_LIMIT;
  options |= literal ? PCRE2_LITERAL : PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C;
  int error = 0;
  size_t place = 0;
  out.code.reset(
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), options, &error, &place, nullptr),
      pcre2_code_free);
  if (out.code == nullptr) {
    fail(ErrorKind::kData, "the split pattern ", for_message(pattern), " cannot be used (", pcre2_text(error),
         " at byte ", place, " of ", for_message(text), "); use a tokenizer with another pattern");
  }
  uint32_t matches_empty = 0;
  pcre2_pattern_info(out.code.get(), PCRE2_INFO_MATCHEMPTY, &matches_empty);
  if (matches_empty != 0) {
    fail(ErrorKind::kData, "the split pattern ", for_message(pattern),
         " can match an empty text, which is not supported; use a tokenizer with another pattern");
  }
  out.jit = pcre2_jit_compile(out.code.get(), PCRE2_JIT_COMPLETE | PCRE2_JIT_PARTIAL_HARD) == 0;
  return out;
}

int SplitPattern::match_at(std::string_view text, uint32_t options, uint32_t steps, bool at_begin,
                           SplitScratch& scratch) const {
  auto subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  pcre2_set_match_limit(scratch.context_.get(), steps);
  pcre2_set_offset_limit(scratch.context_.get(), at_begin ? 0 : PCRE2_UNSET);
  const Compiled& compiled = scratch.is_newer_ ? full_ : plain_;
  auto run = [&] {
    if (compiled.jit) {
      return pcre2_jit_match(compiled.code.get(), subject, text.size(), 0, options, scratch.data_.get(),
                             scratch.context_.get());
    }
    return pcre2_match(compiled.code.get(), subject, text.size(), 0, options | PCRE2_NO_UTF_CHECK,
                       scratch.data_.get(), scratch.context_.get());
  };
  const int count = run();
  if (count != PCRE2_ERROR_JIT_STACKLIMIT || scratch.stack_ != nullptr) return count;
  scratch.stack_.reset(pcre2_jit_stack_create(size_t{1} << 20, kMaxStackBytes, nullptr),
                       pcre2_jit_stack_free);
  pcre2_jit_stack_assign(scratch.context_.get(), nullptr, scratch.stack_.get());
  return run();
}

// Searches a short part of the text first. A search that needs more is repeated with four times as much text.
// If steps run out, each position is tried by itself, with four times as many steps each time. Both cost
// effort, so the number of steps is bounded by the bytes of the text, whatever the pattern.
SplitPattern::MatchOutcome SplitPattern::find(std::string_view text, bool goes_on, SplitScratch& scratch,
                                              Match& match) const {
  // Before single_end, a match begins at `begin` or not at all.
  size_t begin = 0, most = kFirstBytes, single_end = 0;
  uint32_t steps = kFirstSteps;
  while (true) {
    size_t end = std::min(text.size() - begin, most) + begin;
    const bool is_rest = end == text.size();
    while (!is_rest && is_continuation(text[end])) --end;
    const std::string_view part = text.substr(begin, end - begin);
    const bool is_single = begin < single_end;
    const bool is_partial = goes_on || !is_rest;
    const int count = match_at(part, is_partial ? PCRE2_PARTIAL_HARD : 0, steps, is_single, scratch);
    const size_t* bounds = pcre2_get_ovector_pointer(scratch.data_.get());
    if (count == PCRE2_ERROR_NOMATCH) {
      if (is_rest && !is_single) return MatchOutcome::kNone;
      begin += is_single ? first_code_point(part).bytes : part.size();
      most = kFirstBytes;
      steps = kFirstSteps;
    } else if (count == PCRE2_ERROR_PARTIAL) {
      if (is_rest) return MatchOutcome::kUncertain;
      begin += bounds[0];
      most *= 4;
      scratch.spend(most);
    } else if (count == PCRE2_ERROR_MATCHLIMIT && !is_single) {
      single_end = end;
      scratch.spend(part.size());
    } else if (count == PCRE2_ERROR_MATCHLIMIT) {
      steps = std::min(steps, UINT32_MAX / 4) * 4;
      scratch.spend(steps / kStepsPerByte);
    } else if (count < 0) {
      fail(ErrorKind::kData, "the split pattern of the tokenizer fails on a text of ", text.size(),
           " bytes (", pcre2_text(count), "); cut the text into smaller documents or use another tokenizer");
    } else {
      match = {begin + bounds[0], begin + bounds[1]};
      FSDP_CHECK(match.end > match.begin, "an empty match");
      return MatchOutcome::kMatch;
    }
  }
}

}  // namespace fsdp::data
