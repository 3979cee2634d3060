#pragma once

// Joins encoded jobs (text_jobs.h) to documents.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "data/texts/document_lengths.h"
#include "data/texts/rows.h"
#include "data/texts/text_jobs.h"
#include "data/tokenizers/tokenizer.h"
#include "data/tokens/row_encoder.h"

namespace fsdp::data {

/// Receives the tokens of documents, one document after another.
class TokenSink {
 public:
  virtual ~TokenSink() = default;
  /// Chooses the output of the next document. Called before its first tokens.
  virtual void choose(bool /*validation*/) {}
  virtual void append(const std::vector<int64_t>& ids) = 0;
  /// Appends tokens of a row that a RowEncoder has encoded.
  virtual void append(const std::vector<int64_t>& ids, const std::vector<TokenPart>& parts) = 0;
  virtual void end_document() = 0;
};

/// Returns the ids after and before every document, by TokenizeOptions::document_separator and
/// document_start. Throws Error(kUsage) for a name that the tokenizer does not have.
std::vector<int64_t> separator_ids(const std::string& name, const Tokenizer& tokenizer);
std::vector<int64_t> start_ids(const std::string& name, const Tokenizer& tokenizer);

/// The forms of the rows of files, of which each file may have one.
class RowForms {
 public:
  /// Returns what is wrong with a row in this form; "" if nothing is, as without a form.
  std::string add(std::string_view form, const RowPlace& place);

  /// Returns "recognised ShareGPT (conversations: from, value) in a.json and 2 more files"; "" without forms.
  std::string text() const;

 private:
  struct Files {
    std::string_view form, first;  ///< the form, and the first file with it
    int64_t more = 0;              ///< number of other files with it
  };
  std::vector<Files> files_;
  std::string_view path_, form_;  ///< the current file, and its form
};

/// Receives encoded jobs in order and passes on their ids. Joins documents that were cut between two jobs: if
/// a part was not encoded exactly up to the next one, the next is encoded again from there. Rows of tokens
/// get no tokens before and after them; their documents end at the separator, if that is one token, otherwise
/// with the row, and always with the file.
class DocumentCollector {
 public:
  DocumentCollector(const Tokenizer& tokenizer, std::vector<int64_t> start, std::vector<int64_t> separator,
                    TokenSink& sink, BadRows& bad_rows);

  const DocumentLengths& lengths() const { return lengths_; }
  const RowForms& forms() const { return forms_; }
  int64_t documents_per_row() const { return documents_per_row_; }
  /// Bytes of the next part that are encoded already; negative: bytes before it that are not encoded yet.
  int64_t encoded_ahead() const {
    return static_cast<int64_t>(skip_) - static_cast<int64_t>(carried_.size());
  }

  void add(const EncodedJob& encoded);

 private:
  void add_row(const EncodedJob& encoded, size_t ids_begin, size_t index);
  void add_tokens(const EncodedJob& encoded, size_t ids_begin, size_t index);
  void end_tokens(const RowPlace& place);
  void join(const TextPart& part, std::string_view text);
  void keep_rest(std::string_view text, size_t consumed, size_t stop);

  const Tokenizer& tokenizer_;
  const std::vector<int64_t> start_, separator_;  ///< ids before and after every document
  TokenSink& sink_;
  BadRows& bad_rows_;
  RowForms forms_;
  DocumentLengths lengths_;
  int64_t document_tokens_ = 0;    ///< number of tokens of the current document so far
  int64_t documents_per_row_ = 0;  ///< number of documents of each row that a RowEncoder has encoded
  std::string_view tokens_path_;   ///< file of the row of tokens whose document has not ended; "" if none
  std::vector<int64_t> ids_;
  std::string carried_;  ///< text of the document before the next part that is not encoded yet
  size_t skip_ = 0;      ///< number of bytes at the beginning of the next part that are encoded already
};

}  // namespace fsdp::data
