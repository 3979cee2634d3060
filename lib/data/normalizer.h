#pragma once

// What tokenizers do to a text before they split it, as Hugging Face's tokenizers does it.

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "data/unicode_form.h"

namespace fsdp::data {

struct NormalizerStep {
  enum class Kind {
    kForm,         ///< `form`
    kPrepend,      ///< `content` goes in front of a text that is not empty
    kReplace,      ///< each `pattern` becomes `content`
    kStrip,        ///< white space goes from the ends that `left` and `right` say
    kPrecompiled,  ///< `content`: SentencePiece's map of characters (character_map.h), decoded
  };
  Kind kind = Kind::kForm;
  UnicodeForm form = UnicodeForm::kNfc;
  std::string pattern, content;
  bool literal = true;  ///< the pattern is a text, no regular expression
  bool left = false, right = false;
};

/// Thread-safe.
class Normalizer {
 public:
  /// Throws Error(kData) for a pattern or map that cannot be used.
  explicit Normalizer(const std::vector<NormalizerStep>& steps);
  ~Normalizer();

  bool empty() const { return steps_.empty(); }

  /// `text` must be valid UTF-8. begins: no text lies before it, so kPrepend has its effect.
  std::string operator()(std::string_view text, bool begins) const;

 private:
  struct Step;
  std::vector<std::unique_ptr<Step>> steps_;
};

}  // namespace fsdp::data
