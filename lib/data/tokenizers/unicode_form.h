#pragma once

// Unicode's normalization forms (UAX #15), computed by utf8proc, for the characters that Hugging Face's
// tokenizers normalizes: those of Unicode 9.0.

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/util/enum_names.h"

namespace fsdp::data {

enum class UnicodeForm { kNfc, kNfd, kNfkc, kNfkd };
constexpr auto enum_names(UnicodeForm) {
  return std::to_array<util::EnumName<UnicodeForm>>({{UnicodeForm::kNfc, "NFC"},
                                                     {UnicodeForm::kNfd, "NFD"},
                                                     {UnicodeForm::kNfkc, "NFKC"},
                                                     {UnicodeForm::kNfkd, "NFKD"}});
}

/// Returns the last position in `text`, which must be valid UTF-8, such that the text before it has the same
/// form whatever follows; 0 if there is none.
size_t last_form_boundary(std::string_view text);

/// A text in a normalization form, with the mapping of its parts to the raw text. A text that already is in
/// the form is not copied. Requires: the raw text outlives the object.
class FormedText {
 public:
  /// Requires: `text` is valid UTF-8.
  FormedText(std::string_view text, UnicodeForm form);

  std::string_view text() const { return changes_.empty() ? raw_ : std::string_view(formed_); }
  bool changed() const { return !changes_.empty(); }

  /// Returns the position in the raw text that corresponds to `place` in the form, such that both parts of
  /// the text cut there have the same forms as in the whole. Nothing if there is no such position.
  std::optional<size_t> raw_place(size_t place) const;
  /// Returns the first position in the form that comes from the position `raw` of the raw text or later.
  size_t place_of(size_t raw) const;

 private:
  struct Change {
    size_t raw_begin, raw_end, begin, end;
  };

  std::string_view raw_;
  std::string formed_;
  std::vector<Change> changes_;  ///< changes in the order of the text
};

}  // namespace fsdp::data
