#pragma once

// Parts of pages.

#include <string>
#include <string_view>

namespace fsdp::report {

/// Escapes text for HTML and SVG, between tags or in quotes.
std::string escaped(std::string_view text);

/// A page without scripts. `subtitle` and `body` are HTML, `title` is text.
std::string html_document(const std::string& title, const std::string& subtitle, const std::string& body);

}  // namespace fsdp::report
