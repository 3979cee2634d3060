#pragma once

// Parts of HTML pages.

#include <string>
#include <string_view>

namespace fsdp::report {

/// Escapes text for HTML and SVG, between tags or in quotes.
std::string escaped(std::string_view text);

/// An HTML page without scripts. `subtitle` and `body` are HTML, `title` is text.
std::string html_document(const std::string& title, const std::string& subtitle, const std::string& body);

}  // namespace fsdp::report
