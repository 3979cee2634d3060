#pragma once

// Texts cut into jobs of some hundred KiB, and the threads that encode them. The boundaries of jobs depend
// only on the texts and the tokenizer.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/texts/rows.h"
#include "data/texts/text_input.h"
#include "data/tokenizers/tokenizer.h"
#include "data/tokens/row_encoder.h"

namespace fsdp::data {

/// A document, or the part of a document that is in a job.
struct TextPart {
  size_t begin = 0, end = 0;  ///< range of the job's text
  /// Offset from `begin` of the document's next part. The text from there on belongs to that part and serves
  /// only as context. end - begin in the last part.
  size_t stop = 0;
  bool begins_document = true, ends_document = true;
  bool validation = false;
  bool is_row = false;  ///< whether the part is a JSON object that contains the document
  RowPlace place{};     ///< the file, and the row if it is one
};

/// A place in a file at which a job may begin.
struct TextPlace {
  int64_t row = 0;           ///< rows before it, in a file with rows (RowFile::skip_to())
  int64_t byte = 0;          ///< bytes of the text before it; in a file with rows RowFile::next_byte()
  bool in_document = false;  ///< whether a document goes on there
};

struct TextJob {
  std::string text;
  std::vector<TextPart> parts;
  TextPlace end = {};      ///< the place after the job, in the file of its last part
  int64_t read_bytes = 0;  ///< bytes of all files up to the end of this job
};

struct EncodedJob {
  struct EncodedPart {
    size_t ids_end = 0;   ///< end of the part's ids in `ids`
    size_t consumed = 0;  ///< number of bytes of the part that are encoded
    bool validation = false;
    std::string bad{};        ///< error of a row that cannot be used, which has no ids
    std::string_view form{};  ///< form of a row, by the RowEncoder
    bool is_tokens = false;   ///< whether the row has tokens in place of a text
  };
  TextJob job;
  std::vector<int64_t> ids;
  std::vector<TokenPart> token_parts;  ///< part of each id; empty without a RowEncoder
  std::vector<EncodedPart> parts;      ///< result of each of job.parts
};

/// Selection of the documents for validation.
struct ValidationShare {
  double fraction = 0;  ///< share of the text; 0: none
  /// Whether whole documents are for validation, chosen by a hash of the seed and their beginning, so that
  /// equal documents are treated alike whatever the order and the other texts. Otherwise the end of each text
  /// is for validation.
  bool by_document = false;
  uint64_t seed = 0;

  /// Whether a document that begins with `document` is for validation; only its first kHashedBytes count.
  bool takes(std::string_view document) const;
  static constexpr size_t kHashedBytes = 1 << 16;
};

/// Reads texts and encodes them in jobs. A row may have a list of tokens in place of a text. Not thread-safe.
class TextJobs {
 public:
  /// `json_lines` is whether all texts are JSON lines, whatever their names, except tables. `json_field` is
  /// the field of a row that contains the document. `encoder` encodes whole rows instead, which all texts
  /// then must have; null: none.
  TextJobs(std::vector<std::string> files, bool json_lines, std::string json_field,
           const ValidationShare& validation, const Tokenizer& tokenizer,
           const RowEncoder* encoder = nullptr);

  /// Begins at a place of the first file. Requires: nothing has been encoded.
  void begin_at(const TextPlace& place);

  /// Encodes all jobs on `threads` threads and passes them to `visit` in order. If `visit` returns false,
  /// reads no further, and passes the jobs that are read already. Returns whether the texts have ended.
  /// Throws Error(kData) for a text that cannot be used. Rows that cannot be used are passed with their
  /// error.
  bool encode(int threads, const std::function<bool(const EncodedJob&)>& visit);

  /// Bytes read from all files.
  int64_t read_bytes() const;

  /// Number of bytes at the end of a text that are for validation.
  static int64_t share_of_end(const ValidationShare& validation, int64_t text_bytes);

 private:
  bool next(TextJob& job);
  EncodedJob encoded(TextJob job) const;
  void encode_document(std::string_view row, const TextPart& part, EncodedJob& out,
                       EncodedJob::EncodedPart& result) const;
  void encode_row(std::string_view row, const TextPart& part, EncodedJob& out,
                  EncodedJob::EncodedPart& result) const;
  void open_next();
  void take_text(TextJob& job);
  void take_rows(TextJob& job);
  bool fill(int64_t bytes);
  void end_on_whole_character();
  void add_part(TextJob& job, size_t stop, bool ends);
  void end_section();
  void close_file();

  std::vector<std::string> files_;
  bool json_lines_;
  std::string json_field_;
  ValidationShare validation_;
  const Tokenizer& tokenizer_;
  const RowEncoder* encoder_;
  size_t next_file_ = 0;
  std::unique_ptr<RowFile> rows_;  ///< rows of the current file; null if it is a text
  std::unique_ptr<TextInput> input_;
  std::string buffer_;        ///< bytes read that are not in a job yet
  std::string pending_;       ///< first byte of the next section, if it had to be read already
  int64_t taken_bytes_ = 0;   ///< bytes of the text that are in jobs
  int64_t section_left_ = 0;  ///< bytes of this section that are not read yet; -1: up to the end of the input
  int64_t end_left_ = 0;      ///< bytes of the next section, the end of the text that is for validation
  bool in_document_ = false, document_validates_ = false;
  int64_t finished_bytes_ = 0;  ///< bytes of files that are completely read
};

}  // namespace fsdp::data
