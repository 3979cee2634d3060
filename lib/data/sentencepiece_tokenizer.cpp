#include "data/sentencepiece_tokenizer.h"

#include <sentencepiece_processor.h>
#include <sentencepiece_trainer.h>

#include <algorithm>
#include <memory>
#include <unordered_map>

#include "data/text_input.h"
#include "data/utf8.h"
#include "util/error.h"
#include "util/file.h"
#include "util/text.h"

namespace fsdp::data {
namespace fs = std::filesystem;
namespace {

using util::ErrorKind;
using util::fail;

/// A blank in pieces: U+2581.
constexpr std::string_view kBlank = "\xe2\x96\x81";
/// The library's text for a piece that is not in the vocabulary.
constexpr const char* kUnknown = " \xe2\x81\x87 ";

class SentencePieceTokenizer final : public Tokenizer {
 public:
  explicit SentencePieceTokenizer(const fs::path& path) : name_(path.string()) {
    std::string bytes;
    try {
      if (!fs::is_regular_file(path)) refuse("is not a regular file");
      bytes = util::read_file(path);
    } catch (const util::Error& error) {
      if (error.kind() == ErrorKind::kData) throw;
      refuse(util::concat("cannot be read (", error.what(), ")"));
    }
    auto status = processor_.LoadFromSerializedProto(bytes);
    // To the library an empty file is a model without pieces.
    if (!status.ok() || processor_.GetPieceSize() == 0) {
      refuse(util::concat("is not a SentencePiece model (", for_message(status.ToString()), ")"));
    }
    // The library does not give these two settings of the model; they show in its treatment of blanks.
    auto encoded = [this](const char* text) { return util::join(processor_.EncodeAsPieces(text), ""); };
    blank_is_put_first_ = encoded("x") != "x";
    drops_blanks_ = encoded("x  x") == encoded("x x");
  }

  std::string name() const override { return name_; }
  int64_t vocab_size() const override { return processor_.GetPieceSize(); }

  void encode(std::string_view text, std::vector<int64_t>& ids) const override {
    std::vector<int> found;
    auto status = processor_.Encode(text, &found);
    if (!status.ok()) {
      fail(ErrorKind::kData, "the tokenizer ", name_, " cannot encode a text of ", text.size(), " bytes (",
           for_message(status.ToString()), "); leave the text out or use another tokenizer");
    }
    ids.insert(ids.end(), found.begin(), found.end());
  }

  std::optional<std::string> bytes_of(int64_t id, bool begins) const override {
    if (id < 0 || id >= vocab_size()) {
      fail(ErrorKind::kData, "the id ", id, " is not a piece of the model ", name_, " (0 to ",
           vocab_size() - 1, "); decode it with the tokenizer that made it");
    }
    int piece_id = static_cast<int>(id);
    if (processor_.IsControl(piece_id)) return std::nullopt;
    if (processor_.IsUnknown(piece_id)) return kUnknown;
    const std::string& piece = processor_.IdToPiece(piece_id);
    // "<0x0A>"
    if (processor_.IsByte(piece_id)) {
      return std::string(1, static_cast<char>(std::stoi(piece.substr(3, 2), nullptr, 16)));
    }
    std::string_view text = piece;
    if (begins && (blank_is_put_first_ || drops_blanks_) && text.starts_with(kBlank)) {
      text.remove_prefix(kBlank.size());
    }
    return replace_all(text, kBlank, " ");
  }

  std::optional<int64_t> end_of_text() const override {
    int id = processor_.eos_id();
    return id < 0 ? std::nullopt : std::optional<int64_t>(id);
  }

  std::optional<int64_t> id_of(const std::string& token) const override {
    int id = processor_.PieceToId(token);
    if (processor_.IsUnknown(id) && processor_.IdToPiece(id) != token) return std::nullopt;
    return id;
  }

 private:
  [[noreturn]] void refuse(const std::string& found) const {
    fail(ErrorKind::kData, "the tokenizer ", name_, " ", found,
         "; give the .model that SentencePiece or fsdp-data train-tokenizer wrote");
  }

  std::string name_;
  sentencepiece::SentencePieceProcessor processor_;
  bool blank_is_put_first_ = false;
  bool drops_blanks_ = false;
};

constexpr int64_t kLineChunkBytes = 1 << 20;
/// Longer lines are cut, so that texts without line ends can be used too.
constexpr size_t kMaxLineBytes = 16384;

/// Iterates over the lines of the texts.
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
        // A cut is not within a character.
        while (!whole && length > 1 && is_continuation(buffer_[begin_ + length])) --length;
        line_.assign(buffer_, begin_, length);
        begin_ += length + (whole ? 1 : 0);
        return true;
      }
      buffer_.erase(0, begin_);
      begin_ = 0;
      if (input_ && input_->read(kLineChunkBytes, buffer_) > 0) continue;
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

void check_training(const TrainTokenizerOptions& options) {
  if (options.texts.empty()) {
    fail(ErrorKind::kUsage, "no text to learn a vocabulary from was given; name at least one file");
  }
  // Bytes, three special tokens and a few characters are in every vocabulary.
  if (options.vocab_size < 300 || options.vocab_size > (1 << 24)) {
    fail(ErrorKind::kUsage, "`vocab_size` must be from 300 to 16,777,216, but is ", options.vocab_size,
         "; 8,000 to 128,000 are usual");
  }
  if (options.model_type != "bpe" && options.model_type != "unigram") {
    fail(ErrorKind::kUsage, "`model_type` must be bpe or unigram, but is \"", options.model_type, "\"");
  }
  if (!options.output.ends_with(".model")) {
    fail(ErrorKind::kUsage, "the output ", options.output, " does not end with .model; name it NAME.model");
  }
}

}  // namespace

std::unique_ptr<Tokenizer> make_sentencepiece_tokenizer(const fs::path& path) {
  return std::make_unique<SentencePieceTokenizer>(path);
}

void train_tokenizer(const TrainTokenizerOptions& options) {
  check_training(options);
  std::vector<std::string> texts = expand_patterns(options.texts);
  // All are opened once, so that a wrong name is reported before the work.
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
  // So that the same lines are drawn each time.
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
