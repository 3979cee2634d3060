#include <array>

#include "data/tokenizers/added_tokens.h"
#include "data/tokenizers/normalizer.h"
#include "data/tokenizers/piece_model.h"
#include "data/tokenizers/utf8.h"
#include "data/tokenizers/vocabulary_tokenizer.h"

namespace fsdp::data {
namespace {

std::vector<Vocabulary::AddedToken> raw_tokens(const Vocabulary& vocabulary) {
  std::vector<Vocabulary::AddedToken> chosen = vocabulary.matched_tokens();
  std::erase_if(chosen, [](const auto& token) { return token.normalized; });
  return chosen;
}

/// Returns the added tokens for normalized text, in their normalized form.
std::vector<Vocabulary::AddedToken> normalized_tokens(const Vocabulary& vocabulary,
                                                      const Normalizer& normalizer) {
  std::vector<Vocabulary::AddedToken> chosen;
  for (Vocabulary::AddedToken& token : vocabulary.matched_tokens()) {
    if (!token.normalized) continue;
    if (valid_utf8_prefix(token.content) == token.content.size()) {
      token.content = normalizer(token.content, true);
    }
    token.normalized = false;
    if (!token.content.empty()) chosen.push_back(std::move(token));
  }
  return chosen;
}

/// Returns the character for a blank, if no merge puts a blank after anything but blanks: then each word of a
/// text, with the blanks before it, can be merged separately. "" otherwise.
std::string word_mark(const Vocabulary& vocabulary) {
  if (vocabulary.model != Vocabulary::Model::kCharacterBpe || vocabulary.ignore_merges) return "";
  const std::string mark = vocabulary.metaspace ? vocabulary.metaspace->blank : Vocabulary::Metaspace().blank;
  if (!vocabulary.tokens.contains(mark) || first_code_point(mark).bytes != mark.size()) return "";
  for (const auto& [left, right] : vocabulary.merges) {
    const std::string whole = left + right;
    const size_t last = whole.rfind(mark);
    if (last == std::string::npos) continue;
    const std::string blanks = replace_all(std::string_view(whole).substr(0, last), mark, "");
    if (!blanks.empty()) return "";
  }
  return mark;
}

class MetaspaceTokenizer final : public VocabularyTokenizer {
 public:
  explicit MetaspaceTokenizer(const Vocabulary& vocabulary)
      : VocabularyTokenizer(vocabulary),
        model_(vocabulary.model == Vocabulary::Model::kUnigram ? make_unigram(vocabulary)
                                                               : make_character_bpe(vocabulary)),
        normalizer_(vocabulary.normalizer),
        added_(raw_tokens(vocabulary)),
        normalized_added_(normalized_tokens(vocabulary, normalizer_)),
        split_at_whitespace_(vocabulary.split_at_whitespace),
        metaspace_(vocabulary.metaspace),
        word_mark_(word_mark(vocabulary)),
        unknown_id_(vocabulary.unknown_id) {
    const auto byte_ids = byte_tokens(vocabulary);
    if (vocabulary.byte_fallback) byte_ids_ = byte_ids;
    const Vocabulary::Decoding& decoding = vocabulary.decoding;
    auto keep_piece = [&](const std::string& token, int64_t id) {
      std::string bytes = decoding.blank.empty() ? token : replace_all(token, decoding.blank, " ");
      std::string first = bytes;
      if (decoding.strip_one_blank && first.starts_with(' ')) first.erase(0, 1);
      if (decoding.strip_first_token) first = replace_all(token, decoding.blank, "");
      keep(id, std::move(bytes), std::move(first));
    };
    for (const auto& [token, id] : vocabulary.tokens) keep_piece(token, id);
    for (size_t byte = 0; decoding.byte_fallback && byte < byte_ids.size(); ++byte) {
      const std::string one(1, static_cast<char>(byte));
      const bool stripped = decoding.strip_one_blank && one == " ";
      if (byte_ids[byte]) keep(*byte_ids[byte], one, stripped ? "" : one);
    }
    for (const auto& token : vocabulary.added) keep(token.id, token.content);
    // These tokens match together with the blank before them.
    for (const auto& token : normalized_tokens(vocabulary, normalizer_)) keep_piece(token.content, token.id);
  }

  void encode(std::string_view text, std::vector<int64_t>& ids) const override {
    std::unique_ptr<PieceCache> cache = caches_.take();
    MetaspaceOutput out{*cache, ids};
    added_.cut_out(text, ids, [&](std::string_view part, bool begins) { segment(part, begins, out); });
    caches_.give_back(std::move(cache));
  }

 private:
  struct MetaspaceOutput {
    PieceCache& cache;
    std::vector<int64_t>& ids;
  };

  /// Encodes a text between added tokens. `first` is whether it begins the whole text.
  void segment(std::string_view text, bool first, MetaspaceOutput& out) const {
    for (size_t done = 0; done < text.size();) {
      const size_t valid = valid_utf8_prefix(text.substr(done));
      if (valid > 0) {
        const std::string normalized = normalizer_(text.substr(done, valid), done == 0);
        normalized_added_.cut_out(normalized, out.ids, [&](std::string_view part, bool begins) {
          words(part, first && done == 0 && begins, done == 0 || !begins, out);
        });
        done += valid;
      } else {
        const auto byte = byte_ids_[static_cast<unsigned char>(text[done++])];
        if (byte) {
          out.ids.push_back(*byte);
        } else if (unknown_id_) {
          out.ids.push_back(*unknown_id_);
        }
      }
    }
  }

  void words(std::string_view text, bool first, bool begins, MetaspaceOutput& out) const {
    if (!split_at_whitespace_) return word(text, first, begins, out);
    for (size_t begin = 0; begin < text.size();) {
      size_t end = begin, space_bytes = 0;
      while (end < text.size() && space_bytes == 0) {
        const CodePoint next = first_code_point(text.substr(end));
        if (is_white_space(next.value)) {
          space_bytes = next.bytes;
        } else {
          end += next.bytes;
        }
      }
      word(text.substr(begin, end - begin), first && begin == 0, begins || begin > 0, out);
      begin = end + space_bytes;
    }
  }

  /// Encodes a word. `first`: it begins the whole text; `begins`: it does not continue the text before it.
  void word(std::string_view text, bool first, bool begins, MetaspaceOutput& out) const {
    if (text.empty()) return;
    if (!metaspace_) return pieces(text, word_mark_, true, out);
    using Prepend = Vocabulary::Metaspace::Prepend;
    const auto& [blank, prepend, split] = *metaspace_;
    std::string marked = replace_all(text, " ", blank);
    const bool put = prepend == Prepend::kAlways || (prepend == Prepend::kFirst && first);
    if (put && begins && !marked.starts_with(blank)) marked.insert(0, blank);
    if (split) return pieces(marked, blank, false, out);
    pieces(marked, word_mark_, true, out);
  }

  /// Cuts the text before each mark; with `runs`, only before the first of consecutive marks.
  void pieces(std::string_view text, const std::string& mark, bool runs, MetaspaceOutput& out) const {
    size_t begin = 0;
    for (size_t i = text.find(mark, 1); !mark.empty() && i != std::string_view::npos;
         i = text.find(mark, i + 1)) {
      if (runs && text.substr(0, i).ends_with(mark)) continue;
      piece(text.substr(begin, i - begin), out);
      begin = i;
    }
    piece(text.substr(begin), out);
  }

  void piece(std::string_view text, MetaspaceOutput& out) const { out.cache.encode(model_, text, out.ids); }

  PieceModel model_;
  Normalizer normalizer_;
  AddedTokens added_, normalized_added_;
  bool split_at_whitespace_;
  std::optional<Vocabulary::Metaspace> metaspace_;
  std::string word_mark_;  ///< result of word_mark()
  std::array<std::optional<uint32_t>, 256> byte_ids_;
  std::optional<int64_t> unknown_id_;
  mutable Pool<PieceCache> caches_;
};

}  // namespace

std::unique_ptr<Tokenizer> make_metaspace_tokenizer(const Vocabulary& vocabulary) {
  return std::make_unique<MetaspaceTokenizer>(vocabulary);
}

}  // namespace fsdp::data
