#include "data/texts/train_tokenizer.h"

#include <sentencepiece_trainer.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <unordered_map>

#include "base/util/error.h"
#include "base/util/extension.h"
#include "base/util/file.h"
#include "data/options/text_names.h"
#include "data/texts/text_input.h"
#include "data/tokenizers/utf8.h"

namespace fsdp::data {
namespace {

constexpr int64_t kLineChunkBytes = 1 << 20;
/// Limit on a line. Longer lines are cut, so that texts without line ends can be used too.
constexpr size_t kMaxSentenceBytes = 16384;

/// Iterates over the lines of texts, and of the documents of texts with rows.
class Lines final : public sentencepiece::SentenceIterator {
 public:
  Lines(const std::vector<std::string>& files, const TrainTokenizerOptions& options, int64_t file_bytes)
      : files_(files), options_(options), bad_rows_(options.skip_bad), file_bytes_(file_bytes) {
    Next();
  }

  const BadRows& bad_rows() const { return bad_rows_; }

  bool done() const override { return done_; }
  const std::string& value() const override { return line_; }
  sentencepiece::util::Status status() const override { return {}; }

  void Next() override {
    do {
      done_ = !take_line();
    } while (!done_ && line_.empty());
  }

 private:
  bool take_line() {
    while (true) {
      size_t end = buffer_.find('\n', begin_);
      if (end != std::string::npos || buffer_.size() - begin_ > kMaxSentenceBytes) {
        size_t length = std::min(end, buffer_.size()) - begin_;
        bool whole = length <= kMaxSentenceBytes;
        length = std::min(length, kMaxSentenceBytes);
        // A cut must not be within a character.
        while (!whole && length > 1 && is_continuation(buffer_[begin_ + length])) --length;
        line_.assign(buffer_, begin_, length);
        begin_ += length + (whole ? 1 : 0);
        return true;
      }
      buffer_.erase(0, begin_);
      begin_ = 0;
      if (read_more()) continue;
      if (!buffer_.empty()) {
        line_.swap(buffer_);
        buffer_.clear();
        return true;
      }
      if (next_file_ == files_.size()) return false;
      open_next();
    }
  }

  void open_next() {
    finished_bytes_ += read_bytes();
    const std::string& path = files_[next_file_++];
    input_.reset();
    rows_.reset();
    if (options_.json_lines || has_rows(path)) {
      rows_ = open_rows(path, {options_.json_field});
    } else {
      input_ = std::make_unique<TextInput>(path);
    }
  }

  int64_t read_bytes() const { return rows_ ? rows_->read_bytes() : input_ ? input_->read_bytes() : 0; }

  /// Appends to the buffer. Returns false at the end of the file.
  bool read_more() {
    if (options_.progress && file_bytes_ > 0) {
      options_.progress("reading", finished_bytes_ + read_bytes(), file_bytes_);
    }
    if (input_) return input_->read(kLineChunkBytes, buffer_) > 0;
    while (rows_) {
      std::string row;
      if (rows_->next(row) == 0) return false;
      try {
        buffer_ += text_of_row(row, rows_->place(), options_.json_field);
      } catch (const util::Error& error) {
        bad_rows_.add(error.what());
        continue;
      }
      buffer_ += '\n';
      return true;
    }
    return false;
  }

  const std::vector<std::string>& files_;
  const TrainTokenizerOptions& options_;
  BadRows bad_rows_;
  int64_t file_bytes_, finished_bytes_ = 0;
  size_t next_file_ = 0;
  std::unique_ptr<TextInput> input_;  ///< current file; null if it has rows
  std::unique_ptr<RowFile> rows_;
  std::string buffer_, line_;
  size_t begin_ = 0;
  bool done_ = false;
};

constexpr const char* kCharacters = "characters";

/// The characters that were seen, each once, in the order of their code points.
class SeenCharacters {
 public:
  void add(std::string_view text) {
    pending_ += text;
    const size_t whole = pending_.size() - incomplete_utf8_tail(pending_);
    for (size_t at = 0; at < whole;) {
      const CodePoint character = first_code_point(std::string_view(pending_).substr(at));
      seen_.insert(character.value);
      at += character.bytes;
    }
    pending_.erase(0, whole);
  }

  /// The tokenizer.json of a model without merges.
  std::string tokenizer_json() const {
    nlohmann::ordered_json vocabulary = nlohmann::ordered_json::object();
    for (const uint32_t character : seen_) {
      std::string token;
      append_utf8(token, character);
      vocabulary[token] = vocabulary.size();
    }
    const nlohmann::ordered_json file = {{"version", "1.0"},
                                         {"truncation", nullptr},
                                         {"padding", nullptr},
                                         {"added_tokens", nlohmann::ordered_json::array()},
                                         {"normalizer", nullptr},
                                         {"pre_tokenizer", nullptr},
                                         {"post_processor", nullptr},
                                         {"decoder", {{"type", "Fuse"}}},
                                         {"model",
                                          {{"type", "BPE"},
                                           {"dropout", nullptr},
                                           {"unk_token", nullptr},
                                           {"continuing_subword_prefix", nullptr},
                                           {"end_of_word_suffix", nullptr},
                                           {"fuse_unk", false},
                                           {"byte_fallback", false},
                                           {"ignore_merges", false},
                                           {"vocab", std::move(vocabulary)},
                                           {"merges", nlohmann::ordered_json::array()}}}};
    return file.dump(2) + "\n";
  }

  bool empty() const { return seen_.empty(); }

 private:
  std::set<uint32_t> seen_;
  std::string pending_;  ///< beginning of a character that the next text completes
};

void add_rows_of(const std::string& path, const TrainTokenizerOptions& options, BadRows& bad_rows,
                 SeenCharacters& characters) {
  const std::unique_ptr<RowFile> rows = open_rows(path, {options.json_field});
  for (std::string row; const int64_t number = rows->next(row); row.clear()) {
    try {
      characters.add(text_of_row(row, {path, number}, options.json_field));
    } catch (const util::Error& error) {
      bad_rows.add(error.what());
    }
  }
}

BadRows write_characters(const std::vector<std::string>& files, const TrainTokenizerOptions& options) {
  BadRows bad_rows(options.skip_bad);
  SeenCharacters characters;
  for (const std::string& path : files) {
    if (options.json_lines || has_rows(path)) {
      add_rows_of(path, options, bad_rows, characters);
      continue;
    }
    TextInput input(path);
    std::string chunk;
    for (; input.read(kLineChunkBytes, chunk) > 0; chunk.clear()) characters.add(chunk);
  }
  if (characters.empty()) {
    fail(ErrorKind::kData, "the texts have no characters to make a vocabulary of; give more text");
  }
  util::write_file_atomically(options.output, characters.tokenizer_json());
  return bad_rows;
}

void check_characters(const TrainTokenizerOptions& options) {
  if (options.vocab_size != 0) {
    fail(ErrorKind::kUsage,
         "`vocab_size` must be left out with the type characters, whose vocabulary is "
         "the characters of the texts, but is ",
         options.vocab_size, "; leave it out");
  }
  if (util::extension_of(options.output) != ".json") {
    fail(ErrorKind::kUsage, "the output ", options.output,
         " of the type characters does not end with .json; name it NAME.json");
  }
}

void check_training(const TrainTokenizerOptions& options) {
  if (options.texts.empty()) {
    fail(ErrorKind::kUsage, "no text to learn a vocabulary from was given; name at least one file");
  }
  if (options.model_type == kCharacters) return check_characters(options);
  // Bytes, three special tokens and a few characters are in every vocabulary.
  if (options.vocab_size < 300 || options.vocab_size > (1 << 24)) {
    fail(ErrorKind::kUsage, "`vocab_size` must be from 300 to 16,777,216, but is ", options.vocab_size,
         "; 8,000 to 128,000 are usual");
  }
  if (options.model_type != "bpe" && options.model_type != "unigram") {
    fail(ErrorKind::kUsage, "`model_type` must be bpe, unigram or characters, but is \"", options.model_type,
         "\"");
  }
  if (util::extension_of(options.output) != ".model") {
    fail(ErrorKind::kUsage, "the output ", options.output, " does not end with .model; name it NAME.model");
  }
}

}  // namespace

BadRows train_tokenizer(const TrainTokenizerOptions& options) {
  check_training(options);
  const std::vector<std::string> files = expand_texts(options.texts);
  const int64_t file_bytes =
      check_files(files, {options.json_field}, options.json_lines ? TextKind::kRows : TextKind::kPlain);
  if (options.model_type == kCharacters) return write_characters(files, options);
  std::unordered_map<std::string, std::string> settings = {
      {"vocab_size", std::to_string(options.vocab_size)},
      {"model_type", options.model_type},
      {"num_threads", std::to_string(std::max(options.threads, 1))},
      {"input_sentence_size", std::to_string(options.max_lines)},
      {"shuffle_input_sentence", "true"},
      {"max_sentence_length", std::to_string(kMaxSentenceBytes)},
      {"byte_fallback", "true"},
      {"split_digits", "true"},
      {"allow_whitespace_only_pieces", "true"},
      {"normalization_rule_name", "identity"},
      {"remove_extra_whitespaces", "false"},
      {"character_coverage", "0.99995"},
      {"minloglevel", "2"},
  };
  // The fixed seed draws the same lines each time.
  sentencepiece::SetRandomGeneratorSeed(1234);
  Lines lines(files, options, file_bytes);
  std::string model;
  auto status = sentencepiece::SentencePieceTrainer::Train(settings, &lines, &model);
  if (!status.ok()) {
    fail(ErrorKind::kData, "SentencePiece cannot learn ", options.vocab_size, " pieces from the texts (",
         for_message(status.ToString()), "); give more text or another `vocab_size`");
  }
  util::write_file_atomically(options.output, model);
  return lines.bad_rows();
}

}  // namespace fsdp::data
