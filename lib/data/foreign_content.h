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
  bool is_json = false;
};

/// What a text holds.
enum class TextKind {
  kPlain,
  kRows,  ///< JSON, one object per line
};

/// For a file that should be text: recognises compressed files, archives, tables, pictures and the like, other
/// encodings than UTF-8, and JSON in a file called *.json, which is not itself a text. `head`: the first few hundred
/// bytes.
std::optional<ForeignContent> foreign_to_text(std::string_view head, const std::string& path,
                                              TextKind kind = TextKind::kPlain);

/// For a file that should be 16-bit tokens without a header: the same as for a text, and text and wider tokens.
/// `sample`: some kilobytes from a multiple of 8 bytes.
std::optional<ForeignContent> foreign_to_tokens(std::string_view head, std::string_view sample,
                                                const std::string& path);

/// For a file that should be 16-bit or 32-bit tokens: recognises 64-bit tokens, of which every second 32-bit number is
/// 0.
std::optional<ForeignContent> wide_tokens(std::string_view sample, const std::string& path);

}  // namespace fsdp::data
