#pragma once

// Texts cut into jobs of some hundred KiB, and the threads that encode them. Where jobs begin depends only on
// the texts and the tokenizer.

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

/// A document, or the part of one that is in a job.
struct TextPart {
  size_t begin = 0, end = 0;  ///< in the job's text
  /// Where the document's next part begins, counted from `begin`: the text behind it belongs to that part and
  /// is here only as context. end - begin in the last part.
  size_t stop = 0;
  bool begins_document = true, ends_document = true;
  bool validation = false;
  bool is_row = false;  ///< a JSON object that holds the document
  size_t file = 0;      ///< where it comes from, for messages
  int64_t row = 0;      ///< its number; rows only
};

struct TextJob {
  std::string text;
  std::vector<TextPart> parts;
  int64_t read_bytes = 0;  ///< of all files, up to the end of this job
};

struct EncodedJob {
  struct Part {
    size_t ids_end = 0;   ///< where its ids end in `ids`
    size_t consumed = 0;  ///< bytes of the part that are encoded
    bool validation = false;
    std::string bad{};  ///< what is wrong with a row that cannot be used, which has no ids
  };
  TextJob job;
  std::vector<int64_t> ids;
  std::vector<TokenPart> token_parts;  ///< one for each of ids; empty without a RowEncoder
  std::vector<Part> parts;             ///< one for each of job.parts
};

/// Which documents are for validation.
struct ValidationShare {
  double fraction = 0;  ///< 0: none
  /// Whole documents are for validation, chosen by a hash of the seed and their beginning, so that equal
  /// documents are treated alike whatever the order and the other texts. Otherwise the end of each text is.
  bool by_document = false;
  uint64_t seed = 0;

  /// Whether a document that begins so is for validation; only its first kHashedBytes count.
  bool takes(std::string_view document) const;
  static constexpr size_t kHashedBytes = 1 << 16;
};

/// Not thread-safe.
class TextJobs {
 public:
  /// json_lines: all texts are JSON lines, whatever their names, except tables. json_field: the field of a
  /// row that is the document. encoder: encodes whole rows instead, which all texts then have; null: none.
  TextJobs(std::vector<std::string> files, bool json_lines, std::string json_field,
           const ValidationShare& validation, const Tokenizer& tokenizer,
           const RowEncoder* encoder = nullptr);

  /// Encodes all jobs on `threads` threads and passes them to `visit` in order. Throws Error(kData) for a text
  /// that cannot be used; rows that cannot be used are passed as such.
  void encode(int threads, const std::function<void(const EncodedJob&)>& visit);

  /// Of all files.
  int64_t read_bytes() const;

  /// Bytes at the end of a text that go to validation.
  static int64_t share_of_end(const ValidationShare& validation, int64_t text_bytes);

 private:
  bool next(TextJob& job);
  EncodedJob encoded(TextJob job) const;
  std::optional<std::string> document_of(std::string_view row, const TextPart& part, std::string& bad) const;
  void encode_row(std::string_view row, const TextPart& part, EncodedJob& out, std::string& bad) const;
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
  std::unique_ptr<Rows> rows_;  ///< of the file that is read, or
  std::unique_ptr<TextInput> input_;
  std::string buffer_;        ///< read and not handed out yet
  std::string pending_;       ///< the first byte of the next section, when it had to be read already
  int64_t section_left_ = 0;  ///< bytes of this section not read yet; -1: up to the end of the input
  int64_t end_left_ = 0;      ///< bytes of the section behind it, the end of the text that is for validation
  bool in_document_ = false, document_validates_ = false;
  int64_t finished_bytes_ = 0;  ///< of files that are read
};

}  // namespace fsdp::data
