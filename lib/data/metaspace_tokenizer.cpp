#include "data/metaspace_tokenizer.h"

#include <algorithm>

#include "data/character_merger.h"
#include "data/unigram_model.h"
#include "data/utf8.h"
#include "util/error.h"

namespace fsdp::data {
namespace {

std::string replace_all(std::string_view text, std::string_view from, std::string_view to) {
  std::string out;
  while (true) {
    const size_t at = text.find(from);
    out += text.substr(0, at);
    if (at == std::string_view::npos) return out;
    out += to;
    text.remove_prefix(at + from.size());
  }
}

std::unique_ptr<PieceModel> make_model(const Vocabulary& vocabulary) {
  if (vocabulary.model == Vocabulary::Model::kUnigram) return std::make_unique<UnigramModel>(vocabulary);
  return std::make_unique<CharacterMerger>(vocabulary);
}

std::vector<Vocabulary::AddedToken> raw_tokens(const Vocabulary& vocabulary) {
  std::vector<Vocabulary::AddedToken> chosen = vocabulary.matched_tokens();
  std::erase_if(chosen, [](const auto& token) { return token.normalized; });
  return chosen;
}

/// As they are in normalized text.
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

/// What stands for a blank, when merges never put one behind something else: then the words of a text, each
/// with the blanks before it, are merged each for itself. Empty where that is not so.
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

}  // namespace

/// One call of encode().
class MetaspaceTokenizer::Encoding {
 public:
  Encoding(const MetaspaceTokenizer& tokenizer, PieceCache& cache, std::vector<int64_t>& ids)
      : tokenizer_(tokenizer), cache_(cache), ids_(ids) {}

  /// A text between added tokens. first: it begins the whole text.
  void segment(std::string_view text, bool first) {
    for (size_t done = 0; done < text.size();) {
      const size_t valid = valid_utf8_prefix(text.substr(done));
      if (valid > 0) {
        const std::string normalized = tokenizer_.normalizer_(text.substr(done, valid), done == 0);
        between_normalized_tokens(normalized, first && done == 0, done == 0);
        done += valid;
      } else {
        const auto byte = tokenizer_.byte_ids_[static_cast<unsigned char>(text[done++])];
        if (byte) {
          ids_.push_back(*byte);
        } else if (tokenizer_.unknown_id_) {
          ids_.push_back(*tokenizer_.unknown_id_);
        }
      }
    }
  }

 private:
  void between_normalized_tokens(std::string_view text, bool first, bool begins) {
    AddedTokens::Search tokens(tokenizer_.normalized_added_, text);
    for (size_t done = 0; done < text.size();) {
      AddedTokens::Match token = tokens.next(done);
      const bool found = token.id >= 0;
      words(text.substr(done, (found ? token.begin : text.size()) - done), first && done == 0,
            begins || done > 0);
      if (!found) return;
      ids_.push_back(token.id);
      done = token.end;
    }
  }

  void words(std::string_view text, bool first, bool begins) {
    if (!tokenizer_.split_at_whitespace_) return word(text, first, begins);
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
      word(text.substr(begin, end - begin), first && begin == 0, begins || begin > 0);
      begin = end + space_bytes;
    }
  }

  /// begins: nothing that belongs to it lies before.
  void word(std::string_view text, bool first, bool begins) {
    if (text.empty()) return;
    if (!tokenizer_.metaspace_) return pieces(text, tokenizer_.word_mark_, true);
    using Prepend = Vocabulary::Metaspace::Prepend;
    const auto& [blank, prepend, split] = *tokenizer_.metaspace_;
    std::string marked = replace_all(text, " ", blank);
    const bool put = prepend == Prepend::kAlways || (prepend == Prepend::kFirst && first);
    if (put && begins && !marked.starts_with(blank)) marked.insert(0, blank);
    if (split) return pieces(marked, blank, false);
    pieces(marked, tokenizer_.word_mark_, true);
  }

  /// Cut before each mark; when `runs`, before the first of several only.
  void pieces(std::string_view text, const std::string& mark, bool runs) {
    size_t begin = 0;
    for (size_t i = text.find(mark, 1); !mark.empty() && i != std::string_view::npos;
         i = text.find(mark, i + 1)) {
      if (runs && text.substr(0, i).ends_with(mark)) continue;
      piece(text.substr(begin, i - begin));
      begin = i;
    }
    piece(text.substr(begin));
  }

  void piece(std::string_view text) {
    cache_.encode(text, ids_, [this](std::string_view one, std::vector<int64_t>& ids) {
      tokenizer_.model_->encode(one, ids);
    });
  }

  const MetaspaceTokenizer& tokenizer_;
  PieceCache& cache_;
  std::vector<int64_t>& ids_;
};

MetaspaceTokenizer::MetaspaceTokenizer(const Vocabulary& vocabulary)
    : name_(vocabulary.source),
      model_(make_model(vocabulary)),
      normalizer_(vocabulary.normalizer),
      added_(raw_tokens(vocabulary)),
      normalized_added_(normalized_tokens(vocabulary, normalizer_)),
      split_at_whitespace_(vocabulary.split_at_whitespace),
      metaspace_(vocabulary.metaspace),
      word_mark_(word_mark(vocabulary)),
      unknown_id_(vocabulary.unknown_id),
      ids_(vocabulary.tokens) {
  const auto byte_ids = byte_tokens(vocabulary);
  if (vocabulary.byte_fallback) byte_ids_ = byte_ids;
  const Vocabulary::Decoding& decoding = vocabulary.decoding;
  auto keep = [&](int64_t id, std::string bytes, std::string first) {
    if (id >= vocab_size()) bytes_.resize(static_cast<size_t>(id) + 1);
    first_bytes_.resize(bytes_.size());
    first_bytes_[static_cast<size_t>(id)] = std::move(first);
    bytes_[static_cast<size_t>(id)] = std::move(bytes);
  };
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
  for (const auto& token : vocabulary.added) {
    keep(token.id, token.content, token.content);
    ids_[token.content] = token.id;
  }
  // They took the blank before them along.
  for (const auto& token : normalized_tokens(vocabulary, normalizer_)) keep_piece(token.content, token.id);
  if (!vocabulary.end_of_text.empty()) end_of_text_ = id_of(vocabulary.end_of_text);
}

void MetaspaceTokenizer::encode(std::string_view text, std::vector<int64_t>& ids) const {
  std::unique_ptr<PieceCache> cache = caches_.take();
  Encoding encoding(*this, *cache, ids);
  AddedTokens::Search tokens(added_, text);
  for (size_t done = 0; done < text.size();) {
    AddedTokens::Match token = tokens.next(done);
    const bool found = token.id >= 0;
    encoding.segment(text.substr(done, (found ? token.begin : text.size()) - done), done == 0);
    if (!found) break;
    ids.push_back(token.id);
    done = token.end;
  }
  caches_.give_back(std::move(cache));
}

std::optional<std::string> MetaspaceTokenizer::bytes_of(int64_t id, bool begins) const {
  if (id < 0 || id >= vocab_size() || !bytes_[static_cast<size_t>(id)]) {
    util::fail(util::ErrorKind::kData, "the id ", id, " is no token of the vocabulary ", name_, " (0 to ",
               vocab_size() - 1, "); decode it with the tokenizer that made it");
  }
  return begins ? first_bytes_[static_cast<size_t>(id)] : bytes_[static_cast<size_t>(id)];
}

std::optional<int64_t> MetaspaceTokenizer::id_of(const std::string& token) const {
  auto found = ids_.find(token);
  return found == ids_.end() ? std::nullopt : std::optional(found->second);
}

}  // namespace fsdp::data
