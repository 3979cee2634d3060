#pragma once

// Files that are neither plain text nor tokens, recognised by their first bytes.

#include <optional>
#include <string>
#include <string_view>

namespace fsdp::data {

/// The kind of a file, and how to make it usable.
struct ForeignContent {
  std::string found;   ///< "is compressed by gzip"
  std::string remedy;  ///< "give its content: zcat PATH | fsdp-data tokenize - ..."
  bool is_json = false;
};

/// Expected content of a text.
enum class TextKind {
  kPlain,
  kRows,    ///< JSON, an array or one object per line
  kBinary,  ///< an archive or a shard, which is checked by its reader
};

/// Recognises content that is not the expected text: compressed files, archives, tables, pictures and the
/// like, encodings other than UTF-8, and JSON in a file called *.json, which is not itself a text. `head` is
/// the first few hundred bytes.
std::optional<ForeignContent> foreign_to_text(std::string_view head, const std::string& path,
                                              TextKind kind = TextKind::kPlain);

/// Recognises content that is not 16-bit tokens without a header: everything that foreign_to_text()
/// recognises, text, and wider tokens. `sample` is some kilobytes from a multiple of 8 bytes.
std::optional<ForeignContent> foreign_to_tokens(std::string_view head, std::string_view sample,
                                                const std::string& path);

/// Recognises 64-bit tokens, whose second 32-bit numbers are 0, in place of 16-bit or 32-bit tokens.
std::optional<ForeignContent> wide_tokens(std::string_view sample, const std::string& path);

}  // namespace fsdp::data
