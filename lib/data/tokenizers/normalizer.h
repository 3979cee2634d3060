#pragma once

// Normalization of texts before they are split, as in Hugging Face's tokenizers.

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizers/unicode_form.h"

namespace fsdp::data {

struct NormalizerStep {
  enum class StepKind {
    kForm,         ///< converts the text to `form`
    kPrepend,      ///< puts `content` before a text that is not empty
    kReplace,      ///< replaces each `pattern` by `content`
    kStrip,        ///< strips white space from the ends that `left` and `right` name
    kPrecompiled,  ///< maps characters by `content`, SentencePiece's map (precompiled_charsmap), decoded
  };
  StepKind kind = StepKind::kForm;
  UnicodeForm form = UnicodeForm::kNfc;
  std::string pattern, content;
  bool literal = true;  ///< whether the pattern is a text, not a regular expression
  bool left = false, right = false;
};

/// A sequence of normalization steps. Thread-safe.
class Normalizer {
 public:
  /// Throws Error(kData) for a pattern or map that cannot be used.
  explicit Normalizer(const std::vector<NormalizerStep>& steps);

  /// Normalizes `text`, which must be valid UTF-8. `begins` is whether no text precedes it, so that kPrepend
  /// applies. Throws Error(kData) if the text becomes more than 64 times as long (the first KiB is exempt).
  std::string operator()(std::string_view text, bool begins) const;

  /// A text that is being normalized, with the limit on its length.
  struct Text {
    std::string text;
    bool begins = true;
    size_t most_bytes = 0;

    /// Throws Error(kData) if `bytes` exceeds most_bytes.
    void check(size_t bytes) const;
  };
  using Step = std::function<void(Text& text)>;

 private:
  std::vector<Step> steps_;
};

}  // namespace fsdp::data
