#include "data/tokenizers/sentencepiece_tokenizer.h"

#include <sentencepiece_processor.h>

#include <algorithm>
#include <unordered_map>

#include "base/util/error.h"
#include "data/tokenizers/added_tokens.h"
#include "data/tokenizers/utf8.h"

namespace fsdp::data {
namespace fs = std::filesystem;
namespace {

/// The character for a blank in pieces: U+2581.
constexpr std::string_view kBlank = "\xe2\x96\x81";
/// The library's text of a piece that is not in the vocabulary.
constexpr const char* kUnknown = " \xe2\x81\x87 ";

class SentencePieceTokenizer final : public Tokenizer {
 public:
  SentencePieceTokenizer(const SentencePieceModel& model, const Vocabulary& vocabulary)
      : name_(vocabulary.source),
        added_(vocabulary.matched_tokens()),
        begin_ids_(vocabulary.begin_ids.value_or(std::vector<int64_t>{})),
        blank_is_put_first_(model.adds_blank),
        drops_blanks_(model.drops_blanks) {
    load(model, processor_);
    using Prepend = Vocabulary::Metaspace::Prepend;
    const bool first_only = vocabulary.metaspace && vocabulary.metaspace->prepend == Prepend::kFirst;
    if (first_only && model.adds_blank && added_.longest_bytes() > 0) {
      SentencePieceModel continuing = model;
      continuing.adds_blank = false;
      continuing_ = std::make_unique<sentencepiece::SentencePieceProcessor>();
      load(continuing, *continuing_);
    }
    vocab_size_ = processor_.GetPieceSize();
    for (const auto& token : vocabulary.added) {
      vocab_size_ = std::max(vocab_size_, token.id + 1);
      if (token.id >= processor_.GetPieceSize()) contents_[token.id] = token.content;
      ids_[token.content] = token.id;
    }
    if (!vocabulary.end_of_text.empty()) end_of_text_ = vocabulary.find(vocabulary.end_of_text);
  }

  std::string name() const override { return name_; }
  int64_t vocab_size() const override { return vocab_size_; }

  void encode(std::string_view text, std::vector<int64_t>& ids) const override {
    if (added_.longest_bytes() == 0) return encode_part(processor_, text, ids);
    added_.cut_out(text, ids, [&](std::string_view part, bool begins) {
      if (!part.empty()) encode_part(begins || !continuing_ ? processor_ : *continuing_, part, ids);
    });
  }

  std::optional<std::string> bytes_of(int64_t id, bool begins) const override {
    if (id < 0 || id >= vocab_size()) {
      fail(ErrorKind::kData, "the id ", id, " is not a piece of the model ", name_, " (0 to ",
           vocab_size() - 1, "); decode it with the tokenizer that made it");
    }
    if (id >= processor_.GetPieceSize()) {
      const auto content = contents_.find(id);
      return content == contents_.end() ? std::nullopt : std::optional(content->second);
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

  std::vector<int64_t> begin_of_text() const override { return begin_ids_; }

  std::optional<int64_t> end_of_text() const override {
    if (end_of_text_) return end_of_text_;
    int id = processor_.eos_id();
    return id < 0 ? std::nullopt : std::optional<int64_t>(id);
  }

  std::optional<int64_t> id_of(const std::string& token) const override {
    if (const auto added = ids_.find(token); added != ids_.end()) return added->second;
    int id = processor_.PieceToId(token);
    if (processor_.IsUnknown(id) && processor_.IdToPiece(id) != token) return std::nullopt;
    return id;
  }

 private:
  void load(const SentencePieceModel& model, sentencepiece::SentencePieceProcessor& processor) const {
    std::string failure;
    try {
      const auto status = processor.LoadFromSerializedProto(model.serialized());
      if (!status.ok()) failure = status.ToString();
    } catch (const std::exception& error) {
      failure = error.what();
    }
    if (failure.empty()) return;
    fail(ErrorKind::kData, "the tokenizer ", name_, " is not a SentencePiece model (", for_message(failure),
         "); give the .model that SentencePiece or fsdp-data train-tokenizer wrote");
  }

  void encode_part(const sentencepiece::SentencePieceProcessor& processor, std::string_view text,
                   std::vector<int64_t>& ids) const {
    std::vector<int> found;
    const auto status = processor.Encode(text, &found);
    if (!status.ok()) {
      fail(ErrorKind::kData, "the tokenizer ", name_, " cannot encode a text of ", text.size(), " bytes (",
           for_message(status.ToString()), "); leave the text out or use another tokenizer");
    }
    ids.insert(ids.end(), found.begin(), found.end());
  }

  std::string name_;
  sentencepiece::SentencePieceProcessor processor_;
  /// Processor of text after added tokens, if only a text's beginning gets a blank; null: processor_.
  std::unique_ptr<sentencepiece::SentencePieceProcessor> continuing_;
  AddedTokens added_;
  int64_t vocab_size_ = 0;
  std::unordered_map<int64_t, std::string> contents_;  ///< texts of added tokens after the model's pieces
  std::unordered_map<std::string, int64_t> ids_;       ///< ids of added tokens
  std::vector<int64_t> begin_ids_;
  std::optional<int64_t> end_of_text_;
  bool blank_is_put_first_, drops_blanks_;
};

}  // namespace

std::unique_ptr<Tokenizer> make_sentencepiece_tokenizer(const SentencePieceModel& model,
                                                        const Vocabulary& vocabulary) {
  return std::make_unique<SentencePieceTokenizer>(model, vocabulary);
}

std::unique_ptr<Tokenizer> make_sentencepiece_tokenizer(const fs::path& path,
                                                        const TokenizerOptions& options) {
  const SentencePieceModel model = read_sentencepiece_model(path);
  Vocabulary vocabulary = vocabulary_of(model, path);
  vocabulary.split_special_tokens = options.split_special_tokens;
  return make_sentencepiece_tokenizer(model, vocabulary);
}

}  // namespace fsdp::data
