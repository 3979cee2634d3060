#pragma once

// Files that are neither plain text nor tokens, recognised by their first bytes.

#include <optional>
#include <string>
#include <string_view>

namespace fsdp::data {

/// What a file is, and how to make it usable.
struct ForeignContent {
  std::string found;   ///< "is compressed by gzip"
  std::string remedy;  ///< "give its content: zcat PATH | fsdp-data tokenize - ..."
};

/// For a file that should be text: recognises compressed files, archives, tables, pictures and the like, and
/// JSON in a file called *.json, which is not itself a text. `head`: the first few hundred bytes.
std::optional<ForeignContent> foreign_to_text(std::string_view head, const std::string& path);

/// For a file that should be 16-bit tokens without a header: the same, and text and 32-bit tokens, in which
/// every second 16-bit number is 0. `sample`: some kilobytes from any even place.
std::optional<ForeignContent> foreign_to_tokens(std::string_view head, std::string_view sample,
                                                const std::string& path);

}  // namespace fsdp::data
