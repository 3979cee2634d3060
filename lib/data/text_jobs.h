#pragma once

// Cuts texts into jobs of some hundred KiB for the threads that encode them. Where jobs begin depends on the
// texts and the tokenizer only.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "data/text_input.h"
#include "data/tokenizer.h"

namespace fsdp::data {

/// A document, or the part of one that a job has.
struct TextPart {
  size_t begin = 0, end = 0;  ///< in the job's text
  /// Where the document's next part begins, counted from `begin`: what lies behind belongs to that part and
  /// shows here only what follows. end - begin in the last part.
  size_t stop = 0;
  bool begins_document = true, ends_document = true;
  bool validation = false;
  bool json = false;  ///< a JSON object that holds the document
  size_t file = 0;    ///< where it comes from, for messages
  int64_t line = 0;   ///< from 1; JSON lines only
};

struct TextJob {
  std::string text;
  std::vector<TextPart> parts;
  int64_t read_bytes = 0;  ///< of the texts, up to the end of this job
};

/// Which documents are for validation.
struct ValidationShare {
  double fraction = 0;  ///< 0: none
  /// By document: a document is for validation when a number made of the seed and its beginning says so,
  /// which is the same for equal documents, in any order and company. Otherwise the end of each text is.
  bool by_document = false;
  uint64_t seed = 0;

  /// Whether a document that begins so is for validation; only its first kHashedBytes count.
  bool takes(std::string_view document) const;
  static constexpr size_t kHashedBytes = 1 << 16;
};

/// Not thread-safe.
class TextJobs {
 public:
  /// json_lines: texts whatever their names are JSON lines.
  TextJobs(std::vector<std::string> files, bool json_lines, const ValidationShare& validation,
           const Tokenizer& tokenizer);

  /// Fills in the next job; false when there is none. Throws Error(kData) for a text that cannot be used.
  bool next(TextJob& job);

  int64_t read_bytes() const { return read_bytes_; }

  /// Bytes at the end of a text that go to validation.
  static int64_t share_of_end(const ValidationShare& validation, int64_t text_bytes);

 private:
  void open_next();
  void take_text(TextJob& job);
  void take_lines(TextJob& job);
  bool fill(int64_t bytes);
  void end_on_whole_character();
  void add_part(TextJob& job, size_t stop, bool ends);
  void end_section();

  std::vector<std::string> files_;
  bool json_lines_;
  ValidationShare validation_;
  const Tokenizer& tokenizer_;
  size_t next_file_ = 0;
  std::unique_ptr<TextInput> input_;
  std::string buffer_;        ///< read and not handed out yet
  std::string pending_;       ///< the first byte of the next section, when it had to be looked at
  int64_t section_left_ = 0;  ///< bytes of this section not read yet; -1: up to the end of the input
  int64_t end_left_ = 0;      ///< bytes of the section behind it, the end of the text that is for validation
  bool json_ = false;
  bool in_document_ = false, document_validates_ = false;
  int64_t line_ = 0;
  int64_t read_bytes_ = 0;
};

}  // namespace fsdp::data
