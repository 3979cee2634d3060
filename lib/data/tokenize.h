#pragma once

// Texts to token files, streamed by several threads: memory stays at some MiB a thread whatever the size of
// the texts. (A tokenizer that takes documents whole, as SentencePiece does, holds a document at a time.)

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "data/token_format.h"
#include "util/progress_bar.h"

namespace fsdp::data {

struct TokenizeOptions {
  /// Files, patterns of files (text_input.h) and "-", in this order. Each file is a document, or each line of
  /// it when it holds JSON lines (.jsonl, .ndjson).
  std::vector<std::string> texts;
  std::string output;  ///< the token file; an older one is replaced
  std::string tokenizer = "bytes";
  /// Otherwise u32 for NAME.u32 and u16 for every other name.
  std::optional<TokenFormat> format;
  std::string json_field = "text";  ///< the field of a JSON line that is the document
  bool json_lines = false;          ///< the texts hold JSON lines whatever their names
  /// What is put behind every document: the text of a token, "eos", the token that the tokenizer names,
  /// "id:N", which may be an id beyond its vocabulary, "text:TEXT", which is tokenized (\n, \t and \\ stand
  /// for a line end, a tab and a backslash), or "none". Empty: eos where the tokenizer has one.
  std::string document_separator;
  /// Names of special tokens in documents are text (TokenizerOptions).
  bool split_special_tokens = false;
  std::string validation_output;  ///< empty: all goes to `output`
  double validation_fraction = 0.1;
  /// "end": the end of each text, a share of its bytes (rounded, up to a whole character), is for validation;
  /// "documents": a share of the documents (ValidationShare). Empty: documents for JSON lines and standard
  /// input, the end otherwise.
  std::string validation_split;
  uint64_t seed = 1234;  ///< of the choice of documents
  int threads = 1;       ///< the output is the same for any number
  util::ByteProgress progress;
};

struct TokenizeReport {
  int64_t text_bytes = 0;
  int64_t tokens = 0;             ///< in output
  int64_t validation_tokens = 0;  ///< in validation_output
  int64_t documents = 0, validation_documents = 0;
  std::string warning{};  ///< of what may not be meant: documents that nothing separates
};

/// Writes the token files; both appear complete or, after an Error, not at all. Errors: kUsage for options
/// that contradict each other, kData for a text that is missing, unreadable or empty, kIo for the outputs.
TokenizeReport tokenize(const TokenizeOptions& options);

}  // namespace fsdp::data
