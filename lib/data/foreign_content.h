#pragma once

// Files that are neither plain text nor tokens, told by how they begin.

#include <optional>
#include <string>
#include <string_view>

namespace fsdp::data {

/// What a file is, and how it becomes what was asked for.
struct ForeignContent {
  std::string found;   ///< "is compressed by gzip"
  std::string remedy;  ///< "give what is in it: zcat PATH | fsdp-data tokenize - ..."
};

/// Of a file that is to be read as text: compressed files, archives, tables, pictures and the like. In a file
/// called *.json also a JSON value, whose texts are not the file's own. `head` is how the file begins, a few
/// hundred bytes.
std::optional<ForeignContent> foreign_to_text(std::string_view head, const std::string& path);

/// Of a file of 16-bit tokens without a header: the same, and from `sample`, some kilobytes of anywhere at an
/// even place: text, and 32-bit tokens, of which every second 16-bit number is 0.
std::optional<ForeignContent> foreign_to_tokens(std::string_view head, std::string_view sample,
                                                const std::string& path);

}  // namespace fsdp::data
