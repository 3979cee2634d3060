#pragma once

// The patterns by which tokenizers split a text before they merge bytes, run by PCRE2 (UTF, UCP).
//
// They are written for Oniguruma, as Hugging Face's tokenizers reads them. A pattern is translated, and what
// does not mean the same to both (or could look behind the place where a match begins) is refused:
// \s becomes Unicode's White_Space, which PCRE2's is not; \w, anchors, look-behind, nested classes,
// possessive or lazy {n,m} and the like are refused.

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace fsdp::data {

/// Thread-safe.
class SplitPattern {
 public:
  /// What a match needs beside the pattern; one a thread.
  class Scratch {
   public:
    Scratch();
    ~Scratch();
    Scratch(const Scratch&) = delete;
    Scratch& operator=(const Scratch&) = delete;

   private:
    friend class SplitPattern;
    struct State;
    std::unique_ptr<State> state_;
  };

  enum class Found {
    kMatch,
    kNone,
    kUncertain,  ///< more text could change the match, or make one
  };
  struct Match {
    size_t begin = 0, end = 0;  ///< never empty
  };

  /// `literal`: the pattern is a text to be found as it is. Throws Error(kData), naming what is not
  /// supported.
  SplitPattern(const std::string& pattern, bool literal);
  ~SplitPattern();
  SplitPattern(SplitPattern&&) noexcept;

  /// The first match in `text`, which must be valid UTF-8. goes_on: more text follows.
  Found find(std::string_view text, bool goes_on, Scratch& scratch, Match& match) const;

  /// The pattern as PCRE2 gets it.
  static std::string translate(const std::string& pattern);

 private:
  struct Code;
  std::unique_ptr<Code> code_;
};

}  // namespace fsdp::data
