#pragma once

// Unicode's normalization forms (UAX #15), made by utf8proc.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp::data {

enum class UnicodeForm { kNfc, kNfd, kNfkc, kNfkd };

/// The last place in `text`, which must be valid UTF-8, before which nothing changes whatever follows it; 0
/// when there is none.
size_t last_form_boundary(std::string_view text);

/// A text in a form, which knows where its parts come from. A text that has the form already is not copied
/// and must outlive the object.
class FormedText {
 public:
  /// `text` must be valid UTF-8.
  FormedText(std::string_view text, UnicodeForm form);

  std::string_view text() const { return changes_.empty() ? raw_ : std::string_view(formed_); }
  bool changed() const { return !changes_.empty(); }

  /// The place in the raw text where it may be cut to have the text in the form cut here: what lies before
  /// and behind has the same form each for itself. Nothing when there is no such place.
  std::optional<size_t> raw_place(size_t place) const;
  /// The first place in the text that comes from `raw` or behind it.
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
