#pragma once

// Conversion of texts to token files, and back.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/util/progress_bar.h"
#include "data/texts/document_lengths.h"
#include "data/texts/rows.h"
#include "data/tokenizers/tokenizer.h"
#include "data/tokens/row_encoder.h"
#include "data/tokens/token_files.h"
#include "data/tokens/token_format.h"

namespace fsdp::data {

struct TokenizeOptions {
  /// Files, patterns of files, folders (text_input.h) and "-", in this order. Each file is a document or, if
  /// it has rows (rows.h), each of its rows.
  std::vector<std::string> texts;
  std::string output;  ///< path of the token file; replaces an older file
  std::string tokenizer = "bytes";
  /// Format of the output. By default u32 for NAME.u32, and u16 for every other name.
  std::optional<TokenFormat> format;
  std::string json_field = "text";  ///< field of a JSON line or column of a table that contains the document
  bool json_lines = false;          ///< whether all texts are JSON lines, whatever their names, except tables
  int64_t skip_bad = 0;             ///< maximum number of unusable rows, which are left out
  /// Makes the encoder of whole rows, for example conversations, which replaces json_field. The output then
  /// has a companion (token_turns.h). Null: rows are texts.
  std::function<std::unique_ptr<RowEncoder>(const Tokenizer& tokenizer)> make_row_encoder;
  /// Separator after every document: the text of a token; "eos", the tokenizer's end of text; "id:N", which
  /// may be an id beyond its vocabulary; "text:TEXT", which is tokenized (\n, \t and \\ are a line end, a tab
  /// and a backslash); or "none". Empty: eos if the tokenizer has one.
  std::string document_separator;
  /// Text before every document, in the same forms ("bos" in the place of "eos"). Empty: the tokens that the
  /// tokenizer puts before texts, if any (Tokenizer::begin_of_text()).
  std::string document_start;
  /// Whether names of special tokens in documents are ordinary text (TokenizerOptions).
  bool split_special_tokens = false;
  std::string validation_output;  ///< path of the validation tokens; empty: all tokens go to `output`
  double validation_fraction = 0.1;
  /// Choice of the text for validation. "end": the end of each text, a share of its bytes (rounded, up to a
  /// whole character). "documents": a share of the documents (ValidationShare). Empty: documents if there are
  /// rows, standard input or compressed files among the texts, otherwise the end.
  std::string validation_split;
  uint64_t seed = 1234;  ///< seed of the choice of documents
  int threads = 1;       ///< number of threads, which does not change the output
  util::ByteProgress progress;
};

struct TokenizeReport {
  int64_t text_bytes = 0;         ///< bytes of the files
  int64_t tokens = 0;             ///< tokens in output
  int64_t validation_tokens = 0;  ///< tokens in validation_output
  int64_t documents = 0, validation_documents = 0;
  BadRows bad_rows{0};  ///< rows that were left out
  /// The assistant's tokens, with make_row_encoder, and those among them that are kLastTurn.
  int64_t assistant_tokens = 0, validation_assistant_tokens = 0;
  int64_t last_turn_tokens = 0, validation_last_turn_tokens = 0;
  int64_t documents_per_row = 1;  ///< number of documents that a RowEncoder made of each row
  DocumentLengths lengths{};      ///< lengths in both outputs, with the tokens between documents
  std::string warning{};          ///< warning about documents without a separator, which may not be intended
  /// Notes about the tokens that the tokenizer puts before documents, and the form of the conversations.
  std::string note{};
};

/// Writes the token files, which appear complete or, after an Error, not at all. Throws Error(kUsage) for
/// options that contradict each other, Error(kData) for a text that is missing, unreadable or empty,
/// Error(kIo) for the outputs.
///
/// Texts are streamed by several threads: memory stays at some MiB per thread whatever the size of the texts.
/// A tokenizer that needs whole documents, as SentencePiece does, takes the memory of a document at a time.
TokenizeReport tokenize(const TokenizeOptions& options);

/// Passes the text of the tokens [begin, begin + count) to `write`, piece by piece. Throws Error(kData) for
/// an id that the tokenizer does not have.
void decode(const TokenFiles& files, const Tokenizer& tokenizer, int64_t begin, int64_t count,
            const std::function<void(std::string_view)>& write);

}  // namespace fsdp::data
