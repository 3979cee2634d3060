#pragma once

// What tokenizers do to a text before they split it, as Hugging Face's tokenizers does it.

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizers/unicode_form.h"

namespace fsdp::data {

struct NormalizerStep {
  enum class Kind {
    kForm,         ///< `form`
    kPrepend,      ///< puts `content` in front of a text that is not empty
    kReplace,      ///< replaces each `pattern` by `content`
    kStrip,        ///< strips white space from the ends that `left` and `right` name
    kPrecompiled,  ///< maps characters by `content`, SentencePiece's map (precompiled_charsmap), decoded
  };
  Kind kind = Kind::kForm;
  UnicodeForm form = UnicodeForm::kNfc;
  std::string pattern, content;
  bool literal = true;  ///< the pattern is a text, not a regular expression
  bool left = false, right = false;
};

/// Thread-safe.
class Normalizer {
 public:
  /// Throws Error(kData) for a pattern or map that cannot be used.
  explicit Normalizer(const std::vector<NormalizerStep>& steps);

  /// `text` must be valid UTF-8. begins: no text lies before it, so that kPrepend applies. Throws Error(kData) when
  /// the text becomes more than 64 times as long (but for its first KiB).
  std::string operator()(std::string_view text, bool begins) const;

  /// A text under normalization, and how long it may become.
  struct Text {
    std::string text;
    bool begins = true;
    size_t most_bytes = 0;

    /// Throws Error(kData) for more bytes than that.
    void check(size_t bytes) const;
  };
  using Step = std::function<void(Text& text)>;

 private:
  std::vector<Step> steps_;
};

}  // namespace fsdp::data
