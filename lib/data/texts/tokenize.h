#pragma once

// Texts to token files, and back.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/util/progress_bar.h"
#include "data/texts/chat_lengths.h"
#include "data/texts/rows.h"
#include "data/tokenizers/tokenizer.h"
#include "data/tokens/row_encoder.h"
#include "data/tokens/token_files.h"
#include "data/tokens/token_format.h"

namespace fsdp::data {

struct TokenizeOptions {
  /// Files, patterns of files, folders (text_input.h) and "-", in this order. Each file is a document, or each
  /// of its rows when it has rows (rows.h).
  std::vector<std::string> texts;
  std::string output;  ///< the token file; an older one is replaced
  std::string tokenizer = "bytes";
  /// By default u32 for NAME.u32 and u16 for every other name.
  std::optional<TokenFormat> format;
  std::string json_field = "text";  ///< the field of a JSON line or column of a table that is the document
  bool json_lines = false;          ///< all texts hold JSON lines, whatever their names, except tables
  int64_t skip_bad = 0;             ///< rows that cannot be used and are left out, at most
  /// Makes what encodes whole rows, conversations for example, instead of json_field; the output then has a
  /// companion (token_turns.h). Null: rows are texts.
  std::function<std::unique_ptr<RowEncoder>(const Tokenizer& tokenizer)> make_row_encoder;
  /// What follows every document: the text of a token; "eos", the tokenizer's end of text; "id:N", which may
  /// be an id beyond its vocabulary; "text:TEXT", which is tokenized (\n, \t and \\ stand for a line end, a
  /// tab and a backslash); or "none". Empty: eos where the tokenizer has one.
  std::string document_separator;
  /// What precedes every document, in the same forms ("bos" in the place of "eos"). Empty: what the tokenizer puts
  /// before texts, if anything (Tokenizer::begin_of_text()).
  std::string document_start;
  /// Names of special tokens in documents are ordinary text (TokenizerOptions).
  bool split_special_tokens = false;
  std::string validation_output;  ///< empty: everything goes to `output`
  double validation_fraction = 0.1;
  /// "end": the end of each text, a share of its bytes (rounded, up to a whole character), is for validation;
  /// "documents": a share of the documents (ValidationShare). Empty: documents if there are rows, standard
  /// input or compressed files among the texts, the end otherwise.
  std::string validation_split;
  uint64_t seed = 1234;  ///< of the choice of documents
  int threads = 1;       ///< the output is the same for any number
  util::ByteProgress progress;
};

struct TokenizeReport {
  int64_t text_bytes = 0;         ///< of the files
  int64_t tokens = 0;             ///< in output
  int64_t validation_tokens = 0;  ///< in validation_output
  int64_t documents = 0, validation_documents = 0;
  BadRows bad_rows{0};                                            ///< that were left out
  int64_t assistant_tokens = 0, validation_assistant_tokens = 0;  ///< with make_row_encoder
  ChatLengths lengths{};                                          ///< of both outputs, with make_row_encoder
  std::string warning{};  ///< about what may not be intended: documents that nothing separates
  std::string note{};     ///< about what the tokenizer puts before documents
};

/// Writes the token files; both appear complete or, after an Error, not at all. Errors: kUsage for options
/// that contradict each other, kData for a text that is missing, unreadable or empty, kIo for the outputs.
///
/// Texts are streamed by several threads: memory stays at some MiB per thread whatever the size of the texts.
/// (With a tokenizer that needs whole documents, as SentencePiece does, it is a document at a time.)
TokenizeReport tokenize(const TokenizeOptions& options);

/// Passes the text of the tokens [begin, begin + count) to `write`, piece by piece. Throws Error(kData) for
/// an id that the tokenizer does not have.
void decode(const TokenFiles& files, const Tokenizer& tokenizer, int64_t begin, int64_t count,
            const std::function<void(std::string_view)>& write);

}  // namespace fsdp::data
