#include "data/sentencepiece_tokenizer.h"

#include <sentencepiece_processor.h>

#include <memory>

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

}  // namespace

std::unique_ptr<Tokenizer> make_sentencepiece_tokenizer(const fs::path& path) {
  return std::make_unique<SentencePieceTokenizer>(path);
}

}  // namespace fsdp::data
