#pragma once

// The patterns by which tokenizers split a text before they merge bytes, executed by PCRE2 (UTF, UCP).
//
// The patterns are written for Oniguruma, which Hugging Face's tokenizers uses, and are translated: \s
// becomes Unicode's White_Space, which differs from PCRE2's \s, and categories and scripts get the characters
// of newer versions of Unicode (unicode_additions.h). Constructs that the two engines read differently, or
// that could look before the beginning of a match, are refused: \w, anchors but $, look-behind, nested
// classes, possessive or lazy {n,m} and the like.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

struct pcre2_real_code_8;
struct pcre2_real_jit_stack_8;
struct pcre2_real_match_context_8;
struct pcre2_real_match_data_8;

namespace fsdp::data {

/// A compiled pattern, which copies share. Thread-safe.
class SplitPattern {
 public:
  /// Memory for matching; one per thread.
  class SplitScratch {
   public:
    SplitScratch();
    SplitScratch(const SplitScratch&) = delete;
    SplitScratch& operator=(const SplitScratch&) = delete;

    /// Sets the text in which the following searches run, one after the other, and their common limit on
    /// effort. Without a call there is no limit.
    void begin_text(std::string_view text);

   private:
    friend class SplitPattern;
    /// Counts effort. Throws Error(kData) if the searches in the text have exceeded their limit.
    void spend(size_t bytes);

    size_t bytes_ = 0;  ///< length of the text
    int64_t effort_left_ = INT64_MAX;
    bool is_newer_ = true;  ///< whether the text may have characters that PCRE2's tables lack
    std::shared_ptr<pcre2_real_match_data_8> data_;
    std::shared_ptr<pcre2_real_match_context_8> context_;
    /// Allocated if PCRE2's own stack of 32 KiB is too small.
    std::shared_ptr<pcre2_real_jit_stack_8> stack_;
  };

  enum class MatchOutcome {
    kMatch,
    kNone,
    kUncertain,  ///< more text could change the match, or make one
  };
  struct Match {
    size_t begin = 0, end = 0;  ///< match, which is never empty
  };

  /// Compiles a pattern; `literal` is whether it is a text, not an expression. Throws Error(kData) with the
  /// construct that is not supported.
  SplitPattern(const std::string& pattern, bool literal);

  /// Finds the first match in `text`, which must be valid UTF-8. `goes_on` is whether more text follows.
  /// Throws Error(kData) if the searches in a text take too many steps (SplitScratch::begin_text()).
  MatchOutcome find(std::string_view text, bool goes_on, SplitScratch& scratch, Match& match) const;

  /// Translates a pattern to PCRE2's syntax, with `additions` including characters that PCRE2's tables lack.
  static std::string translate(const std::string& pattern, bool additions = true);

 private:
  int match_at(std::string_view text, uint32_t options, uint32_t steps, bool at_begin,
               SplitScratch& scratch) const;

  struct Compiled {
    std::shared_ptr<pcre2_real_code_8> code;
    bool jit = false;
  };
  static Compiled compile(const std::string& pattern, const std::string& text, bool literal);

  Compiled full_, plain_;  ///< plain_ lacks the characters that PCRE2's tables lack, and is faster
};

}  // namespace fsdp::data
