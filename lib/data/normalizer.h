#pragma once

// What tokenizers do to a text before they split it, as Hugging Face's tokenizers does it.

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "data/unicode_form.h"

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

  /// `text` must be valid UTF-8. begins: no text lies before it, so that kPrepend applies.
  std::string operator()(std::string_view text, bool begins) const;

  using Step = std::function<std::string(std::string&& text, bool begins)>;

 private:
  std::vector<Step> steps_;
};

}  // namespace fsdp::data
