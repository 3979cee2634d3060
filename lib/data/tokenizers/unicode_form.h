#pragma once

// Unicode's normalization forms (UAX #15), made by utf8proc, of the characters that Hugging Face's tokenizers normalizes:
// those of Unicode 9.0.

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

/// The last place in `text`, which must be valid UTF-8, such that the text before it has the same form
/// whatever follows; 0 when there is none.
size_t last_form_boundary(std::string_view text);

/// A text in a form, and where its parts come from in the raw text. A text that is in the form already is not
/// copied; the raw text must outlive the object.
class FormedText {
 public:
  /// `text` must be valid UTF-8.
  FormedText(std::string_view text, UnicodeForm form);

  std::string_view text() const { return changes_.empty() ? raw_ : std::string_view(formed_); }
  bool changed() const { return !changes_.empty(); }

  /// The place in the raw text that corresponds to `place` in the form: cut there, both parts have the same
  /// forms as in the whole. Nothing when there is no such place.
  std::optional<size_t> raw_place(size_t place) const;
  /// The first place in the form that comes from the place `raw` of the raw text or behind it.
  size_t place_of(size_t raw) const;

 private:
  struct Change {
    size_t raw_begin, raw_end, begin, end;
  };

  std::string_view raw_;
  std::string formed_;
  std::vector<Change> changes_;  ///< in order
};

}  // namespace fsdp::data
