#pragma once

// The patterns by which tokenizers split a text before they merge bytes, run by PCRE2 (UTF, UCP).
//
// They are written for Oniguruma, which Hugging Face's tokenizers uses. A pattern is translated: \s becomes
// Unicode's White_Space, which differs from PCRE2's \s, and categories and scripts get the characters of newer
// versions of Unicode (unicode_additions.h). Refused is what both engines read differently, and what could look
// behind the place where a match begins: \w, anchors but $, look-behind, nested classes, possessive or lazy {n,m}
// and the like.

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

/// Thread-safe. Copies share the compiled pattern.
class SplitPattern {
 public:
  /// The memory that matching needs; one per thread.
  class Scratch {
   public:
    Scratch();
    Scratch(const Scratch&) = delete;
    Scratch& operator=(const Scratch&) = delete;

    /// Sets the text in which all searches follow, one after the other, and with it what they may cost together. Without
    /// a call they cost nothing.
    void begin_text(std::string_view text);

   private:
    friend class SplitPattern;
    /// Throws Error(kData) when the text has cost too much.
    void spend(size_t bytes);

    size_t bytes_ = 0;  ///< of the text
    int64_t effort_left_ = INT64_MAX;
    bool is_newer_ = true;  ///< the text may have characters that PCRE2's tables lack
    std::shared_ptr<pcre2_real_match_data_8> data_;
    std::shared_ptr<pcre2_real_match_context_8> context_;
    std::shared_ptr<pcre2_real_jit_stack_8> stack_;  ///< made when PCRE2's own of 32 KiB is too small
  };

  enum class Found {
    kMatch,
    kNone,
    kUncertain,  ///< more text could change the match, or make one
  };
  struct Match {
    size_t begin = 0, end = 0;  ///< never empty
  };

  /// `literal`: the pattern is a text, not an expression. Throws Error(kData), naming what is not supported.
  SplitPattern(const std::string& pattern, bool literal);

  /// The first match in `text`, which must be valid UTF-8. goes_on: more text follows. Throws Error(kData) when the
  /// searches in a text take too many steps (Scratch::begin_text()).
  Found find(std::string_view text, bool goes_on, Scratch& scratch, Match& match) const;

  /// The pattern in PCRE2's syntax; with `additions`, of characters that its tables lack too.
  static std::string translate(const std::string& pattern, bool additions = true);

 private:
  int match_at(std::string_view text, uint32_t options, uint32_t steps, bool at_begin,
               Scratch& scratch) const;

  struct Compiled {
    std::shared_ptr<pcre2_real_code_8> code;
    bool jit = false;
  };
  static Compiled compile(const std::string& pattern, const std::string& text, bool literal);

  Compiled full_, plain_;  ///< plain_: without the characters that PCRE2's tables lack, which is faster
};

}  // namespace fsdp::data
