#include <sentencepiece_processor.h>
#include <sentencepiece_trainer.h>

#include <algorithm>
#include <memory>
#include <unordered_map>

#include "data/sentencepiece_tokenizer.h"
#include "data/text_input.h"
#include "data/utf8.h"
#include "util/error.h"
#include "util/file.h"

namespace fsdp::data {
namespace {

using util::ErrorKind;
using util::fail;

constexpr int64_t kChunkBytes = 1 << 20;
/// Longer lines are cut here, so that a text without line ends can be learnt from too.
constexpr size_t kMaxLineBytes = 16384;

/// Hands out the lines of the texts one by one.
class Lines final : public sentencepiece::SentenceIterator {
 public:
  explicit Lines(const std::vector<std::string>& texts) : texts_(texts) { Next(); }

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
      if (end != std::string::npos || buffer_.size() - begin_ > kMaxLineBytes) {
        size_t length = std::min(end, buffer_.size()) - begin_;
        bool whole = length <= kMaxLineBytes;
        length = std::min(length, kMaxLineBytes);
        // Not within a character.
        while (!whole && length > 1 && (buffer_[begin_ + length] & 0xc0) == 0x80) --length;
        line_.assign(buffer_, begin_, length);
        begin_ += length + (whole ? 1 : 0);
        return true;
      }
      buffer_.erase(0, begin_);
      begin_ = 0;
      if (input_ && input_->read(kChunkBytes, buffer_) > 0) continue;
      if (!buffer_.empty()) {
        line_.swap(buffer_);
        buffer_.clear();
        return true;
      }
      if (next_text_ == texts_.size()) return false;
      input_ = std::make_unique<TextInput>(texts_[next_text_++]);
    }
  }

  std::vector<std::string> texts_;
  size_t next_text_ = 0;
  std::unique_ptr<TextInput> input_;
  std::string buffer_, line_;
  size_t begin_ = 0;
  bool done_ = false;
};

void check(const TrainTokenizerOptions& options) {
  if (options.texts.empty()) {
    fail(ErrorKind::kUsage, "no text to learn a vocabulary from was given; name at least one file");
  }
  // Bytes, three special tokens and a few characters are in every vocabulary.
  if (options.vocab_size < 300 || options.vocab_size > (1 << 24)) {
    fail(ErrorKind::kUsage, "`vocab_size` is ", options.vocab_size,
         " where 300 to 16,777,216 was expected; 8,000 to 128,000 are usual");
  }
  if (options.model_type != "bpe" && options.model_type != "unigram") {
    fail(ErrorKind::kUsage, "`model_type` is \"", options.model_type, "\" where bpe or unigram was expected");
  }
  if (!options.output.ends_with(".model")) {
    fail(ErrorKind::kUsage, "the output ", options.output, " is not told from other files by its name; ",
         "name it NAME.model");
  }
}

}  // namespace

void train_tokenizer(const TrainTokenizerOptions& options) {
  check(options);
  std::vector<std::string> texts = expand_patterns(options.texts);
  // All are opened once, so that a wrong name is told before the work.
  for (const std::string& text : texts) {
    if (text != kStandardInput) TextInput input(text);
  }
  std::unordered_map<std::string, std::string> settings = {
      {"vocab_size", std::to_string(options.vocab_size)},
      {"model_type", options.model_type},
      {"num_threads", std::to_string(std::max(options.threads, 1))},
      {"input_sentence_size", std::to_string(options.max_lines)},
      {"shuffle_input_sentence", "true"},
      {"max_sentence_length", std::to_string(kMaxLineBytes)},
      {"byte_fallback", "true"},
      {"split_digits", "true"},
      {"allow_whitespace_only_pieces", "true"},
      {"normalization_rule_name", "identity"},
      {"remove_extra_whitespaces", "false"},
      {"character_coverage", "0.99995"},
      {"minloglevel", "2"},
  };
  // The lines that are drawn are the same each time.
  sentencepiece::SetRandomGeneratorSeed(1234);
  Lines lines(texts);
  std::string model;
  auto status = sentencepiece::SentencePieceTrainer::Train(settings, &lines, &model);
  if (!status.ok()) {
    fail(ErrorKind::kData, "SentencePiece cannot learn ", options.vocab_size, " pieces from the texts (",
         for_message(status.ToString()), "); give more text or another `vocab_size`");
  }
  util::write_file_atomically(options.output, model);
}

}  // namespace fsdp::data
