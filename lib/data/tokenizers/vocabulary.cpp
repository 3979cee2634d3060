#include "data/tokenizers/vocabulary.h"

#include <algorithm>

#include "base/util/error.h"
#include "data/tokenizers/base64.h"
#include "data/tokenizers/companions.h"
#include "data/tokenizers/vocabulary_reader.h"

namespace fsdp::data {
namespace fs = std::filesystem;
namespace {

using nlohmann::json;
using StepKind = NormalizerStep::StepKind;

/// Limit on normalization steps, each of which costs time for every text.
constexpr size_t kMostSteps = 64;

/// Reads a tokenizer.json part by part.
class TokenizerJson : public VocabularyReader {
 public:
  using VocabularyReader::VocabularyReader;

  Vocabulary read(const json& root) {
    out_.source = source();
    added_tokens(at(root, "added_tokens"));
    normalizer(at(root, "normalizer"));
    pre_tokenizer(at(root, "pre_tokenizer"));
    model(at(root, "model"));
    decoder(at(root, "decoder"));
    post_processor(at(root, "post_processor"));
    check();
    out_.end_of_text = usual_end_of_text(out_);
    return std::move(out_);
  }

 private:
  void added_tokens(const json& list) {
    if (list.is_null()) return;
    if (!list.is_array()) damaged("has \"added_tokens\" that is not a list");
    for (const json& entry : list) {
      object(entry, "in each of \"added_tokens\"");
      Vocabulary::AddedToken token = added_token(entry);
      token.id = id(at(entry, "id"), token.content);
      out_.added.push_back(std::move(token));
    }
  }

  void normalizer(const json& value) {
    if (value.is_null()) return;
    std::string type = text(object(value, "\"normalizer\""), "type");
    if (type == "Sequence") {
      for (const json& part : list(value, "normalizers")) normalizer(part);
      return;
    }
    NormalizerStep step;
    if (const auto form = util::parse_enum<UnicodeForm>(type)) {
      step.form = *form;
    } else if (type == "Prepend") {
      step.kind = StepKind::kPrepend;
      step.content = text(value, "prepend");
    } else if (type == "Replace") {
      step.kind = StepKind::kReplace;
      pattern(at(value, "pattern"), step.pattern, step.literal);
      step.content = text(value, "content");
    } else if (type == "Strip") {
      step.kind = StepKind::kStrip;
      step.left = flag(value, "strip_left", true);
      step.right = flag(value, "strip_right", true);
    } else if (type == "Precompiled") {
      if (at(value, "precompiled_charsmap").is_null()) return;
      step.kind = StepKind::kPrecompiled;
      auto map = from_base64(text(value, "precompiled_charsmap"));
      if (!map) damaged("has a \"precompiled_charsmap\" that is not base64");
      if (map->empty()) return;
      step.content = std::move(*map);
    } else {
      unsupported("the normalizer " + type);
    }
    out_.normalizer.push_back(std::move(step));
  }

  void pattern(const json& value, std::string& pattern, bool& literal) const {
    object(value, "\"pattern\"");
    literal = value.contains("String");
    pattern = text(value, literal ? "String" : "Regex");
    if (pattern.empty()) damaged("has an empty pattern");
  }

  void pre_tokenizer(const json& value) {
    if (value.is_null()) return;
    std::string type = text(object(value, "\"pre_tokenizer\""), "type");
    if (type == "Sequence") {
      for (const json& part : list(value, "pretokenizers")) {
        if (bytes_) unsupported("a pre-tokenizer after ByteLevel");
        pre_tokenizer(part);
      }
      return;
    }
    if (out_.metaspace) unsupported("a pre-tokenizer after Metaspace");
    if (type == "ByteLevel") {
      bytes_ = true;
      out_.add_prefix_space = flag(value, "add_prefix_space", true);
      if (out_.add_prefix_space && !out_.splits.empty()) {
        unsupported("\"add_prefix_space\" after another pre-tokenizer");
      }
      if (flag(value, "use_regex", true)) out_.splits.push_back({.pattern = kGpt2SplitPattern});
    } else if (type == "Split") {
      split(value);
    } else if (type == "Digits") {
      bool each = flag(value, "individual_digits", false);
      out_.splits.push_back({.pattern = each ? "\\p{N}" : "\\p{N}+"});
    } else if (type == "WhitespaceSplit") {
      out_.split_at_whitespace = true;
    } else if (type == "Metaspace") {
      metaspace(value);
    } else {
      unsupported("the pre-tokenizer " + type);
    }
  }

  void split(const json& value) {
    Vocabulary::Split rule;
    pattern(at(value, "pattern"), rule.pattern, rule.literal);
    std::string behavior = text(value, "behavior");
    bool invert = flag(value, "invert", false);
    if (rule.literal && !invert && !can_occur(rule.pattern)) return;
    if (behavior == "Removed" && invert) {
      rule.matches_only = true;
    } else if (behavior != "Isolated") {
      // Isolated gives the same pieces whether inverted or not.
      unsupported(concat("a split with the behavior ", behavior, invert ? " (inverted)" : ""));
    }
    out_.splits.push_back(std::move(rule));
  }

  /// Whether a normalized text can contain the text. It cannot if the normalizer replaces it, as Gemma's does
  /// with the blanks by which its pre-tokenizer splits.
  bool can_occur(const std::string& searched) const {
    bool can = true;
    for (const NormalizerStep& step : out_.normalizer) {
      const bool replaces = step.kind == StepKind::kReplace && step.literal;
      if (replaces && searched.find(step.pattern) != std::string::npos && !step.content.empty() &&
          step.content.find_first_of(searched) == std::string::npos) {
        can = false;
      } else if (!replaces || step.content.find_first_of(searched) != std::string::npos) {
        can = true;
      }
    }
    return can;
  }

  /// "prepend_scheme", or "add_prefix_space" of older files.
  Vocabulary::Metaspace::Prepend prepend_scheme(const json& value) const {
    using Prepend = Vocabulary::Metaspace::Prepend;
    if (!flag(value, "add_prefix_space", true)) return Prepend::kNever;
    if (at(value, "prepend_scheme").is_null()) return Prepend::kAlways;
    std::string scheme = text(value, "prepend_scheme");
    if (scheme == "never") return Prepend::kNever;
    if (scheme == "first") return Prepend::kFirst;
    if (scheme != "always") unsupported("the prepend_scheme " + scheme);
    return Prepend::kAlways;
  }

  std::string replacement(const json& value) const {
    std::string blank = text(value, "replacement");
    if (blank.empty()) damaged("has an empty \"replacement\"");
    return blank;
  }

  void metaspace(const json& value) {
    Vocabulary::Metaspace metaspace;  // clang 14 takes optional::emplace() of it for ill-formed
    metaspace.blank = replacement(value);
    metaspace.prepend = prepend_scheme(value);
    metaspace.split = flag(value, "split", true);
    out_.metaspace = std::move(metaspace);
  }

  void model(const json& value) {
    object(value, "\"model\"");
    // Files of older versions of tokenizers have no type.
    std::string type = at(value, "type").is_null() ? "BPE" : text(value, "type");
    if (type == "Unigram") return unigram(value);
    if (type != "BPE") unsupported(concat("a model of type ", type));
    out_.model = bytes_ ? Vocabulary::Model::kByteLevelBpe : Vocabulary::Model::kCharacterBpe;
    if (const json& dropout = at(value, "dropout"); !dropout.is_null() && dropout != 0) {
      unsupported("dropout of merges");
    }
    for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
      const json& affix = at(value, key);
      // NOLINTNEXTLINE(readability-container-size-empty): a JSON value may be of any type
      if (!affix.is_null() && affix != "") unsupported(concat("the option \"", key, "\""));
    }
    out_.byte_fallback = flag(value, "byte_fallback", false);
    out_.fuse_unknown = flag(value, "fuse_unk", false);
    out_.ignore_merges = flag(value, "ignore_merges", false);
    tokens(at(value, "vocab"), out_);
    if (const json& unknown = at(value, "unk_token"); unknown.is_string()) {
      auto found = out_.tokens.find(unknown.get<std::string>());
      if (found != out_.tokens.end()) out_.unknown_id = found->second;
      // A vocabulary of all bytes never needs it.
      if (!out_.unknown_id && !bytes_) damaged("has no token for its \"unk_token\"");
    }
    const json& merges = at(value, "merges");
    if (!merges.is_array()) damaged("has no list \"merges\"");
    out_.merges.reserve(merges.size());
    for (const json& entry : merges) {
      if (entry.is_string()) {
        merge(entry.get_ref<const std::string&>(), out_);
      } else if (entry.is_array() && entry.size() == 2 && entry[0].is_string() && entry[1].is_string()) {
        out_.merges.emplace_back(entry[0].get<std::string>(), entry[1].get<std::string>());
      } else {
        damaged("has a merge that is not of two tokens");
      }
    }
  }

  void unigram(const json& value) {
    out_.model = Vocabulary::Model::kUnigram;
    out_.byte_fallback = flag(value, "byte_fallback", false);
    const json& pieces = at(value, "vocab");
    if (!pieces.is_array() || pieces.empty()) damaged("has no list \"vocab\" of pieces and scores");
    for (const json& piece : pieces) {
      if (!piece.is_array() || piece.size() != 2 || !piece[0].is_string() || !piece[1].is_number()) {
        damaged("has a piece that is not a text and its score");
      }
      out_.pieces.emplace_back(piece[0].get<std::string>(), piece[1].get<double>());
      out_.tokens[out_.pieces.back().first] = static_cast<int64_t>(out_.pieces.size()) - 1;
    }
    id(static_cast<int64_t>(out_.pieces.size()) - 1, out_.pieces.back().first);
    if (at(value, "unk_id").is_null()) return;
    out_.unknown_id = id(at(value, "unk_id"), "unk_id");
    if (*out_.unknown_id >= static_cast<int64_t>(out_.pieces.size())) {
      damaged("has an \"unk_id\" that is not one of its pieces");
    }
  }

  void decoder(const json& value) {
    if (value.is_null()) {
      if (!bytes_) unsupported("no decoder");
      return;
    }
    std::string type = text(object(value, "\"decoder\""), "type");
    if (bytes_) {
      if (type != "ByteLevel") unsupported("the decoder " + type);
    } else if (type == "ByteLevel") {
      unsupported("no pre-tokenizer ByteLevel");
    } else if (type == "Sequence") {
      for (const json& part : list(value, "decoders")) decode_step(part);
    } else {
      decode_step(value);
    }
  }

  void decode_step(const json& value) {
    Vocabulary::Decoding& decoding = out_.decoding;
    std::string type = text(object(value, "in each of \"decoders\""), "type");
    if (type == "Replace") {
      bool literal = false;
      std::string blank;
      pattern(at(value, "pattern"), blank, literal);
      if (!literal || text(value, "content") != " " || !decoding.blank.empty()) {
        unsupported("a decoder that replaces anything other than one string by a blank");
      }
      decoding.blank = blank;
    } else if (type == "ByteFallback") {
      decoding.byte_fallback = true;
    } else if (type == "Strip") {
      const bool one = at(value, "start") == 1 && at(value, "stop") == 0 && text(value, "content") == " ";
      if (!one) unsupported("a decoder Strip of anything other than one blank at the beginning");
      decoding.strip_one_blank = true;
    } else if (type == "Metaspace") {
      decoding.blank = replacement(value);
      decoding.strip_first_token = prepend_scheme(value) != Vocabulary::Metaspace::Prepend::kNever;
    } else if (type != "Fuse") {
      unsupported("the decoder " + type);
    }
  }

  /// The tokens around a text.
  void post_processor(const json& value) {
    if (value.is_null()) return;
    std::string type = text(object(value, "\"post_processor\""), "type");
    if (type == "Sequence") {
      for (const json& part : list(value, "processors")) post_processor(part);
    } else if (type == "TemplateProcessing") {
      template_of_texts(value);
    } else if (type == "BertProcessing" || type == "RobertaProcessing") {
      out_.begin_ids = named_token(value, "cls");
      out_.end_ids = named_token(value, "sep");
    } else if (type != "ByteLevel") {
      unsupported("the post-processor " + type);
    }
  }

  void template_of_texts(const json& value) {
    const json& single = at(value, "single");
    if (!single.is_array()) damaged("has a post-processor without a template \"single\"");
    std::vector<int64_t> begin, end;
    bool is_behind = false;
    for (const json& part : single) {
      if (object(part, "in each part of a template").contains("Sequence")) {
        is_behind = true;
        continue;
      }
      for (const int64_t token : template_token(value, at(part, "SpecialToken"))) {
        (is_behind ? end : begin).push_back(token);
      }
    }
    out_.begin_ids.emplace(std::move(begin));
    out_.end_ids.emplace(std::move(end));
  }

  /// Reads the token of a pair of text and id.
  std::vector<int64_t> named_token(const json& value, const char* key) const {
    const json& pair = at(value, key);
    if (!pair.is_array() || pair.size() != 2) {
      damaged(concat("has a post-processor without a token \"", key, "\""));
    }
    return {id(pair[1], key)};
  }

  /// Returns the ids that a template inserts for a token.
  std::vector<int64_t> template_token(const json& value, const json& part) const {
    const std::string name = text(object(part, "\"SpecialToken\" in a template"), "id");
    const json& tokens = at(value, "special_tokens");
    const json& token = tokens.is_object() ? at(tokens, name.c_str()) : tokens;
    const json& ids = token.is_object() ? at(token, "ids") : token;
    std::vector<int64_t> found;
    for (const json& each : ids.is_array() ? ids : json::array()) found.push_back(id(each, name));
    if (found.empty()) {
      const auto known = out_.find(name);
      if (!known) damaged("has a post-processor with the token \"" + name + "\", which it lacks");
      found.push_back(*known);
    }
    return found;
  }

  /// Refuses unsupported combinations of parts.
  void check() const {
    const auto& steps = out_.normalizer;
    if (steps.size() > kMostSteps || out_.splits.size() > kMostSteps) {
      unsupported(concat("more than ", kMostSteps, " normalizers or pre-tokenizers"));
    }
    const bool forms_only = std::all_of(
        steps.begin(), steps.end(), [](const NormalizerStep& step) { return step.kind == StepKind::kForm; });
    if (bytes_) {
      if (out_.model == Vocabulary::Model::kUnigram) unsupported("a model of type Unigram over bytes");
      if (out_.byte_fallback) unsupported("the option \"byte_fallback\" of a model over bytes");
      if (out_.split_at_whitespace) unsupported("the pre-tokenizer WhitespaceSplit before ByteLevel");
      if (!forms_only || steps.size() > 1) {
        unsupported("a normalizer other than one of NFC, NFD, NFKC and NFKD before ByteLevel");
      }
      if (!steps.empty() && out_.add_prefix_space) unsupported("\"add_prefix_space\" after a normalizer");
      return;
    }
    if (!out_.splits.empty()) unsupported("a split by patterns and no pre-tokenizer ByteLevel");
    if (is_of_characters(out_)) return;
    if (out_.model == Vocabulary::Model::kCharacterBpe && !out_.byte_fallback && !out_.unknown_id) {
      unsupported("neither a token for unknown characters nor byte_fallback");
    }
  }

  Vocabulary out_;
  bool bytes_ = false;  ///< whether there is a pre-tokenizer ByteLevel
};

}  // namespace

std::vector<Vocabulary::AddedToken> Vocabulary::matched_tokens() const {
  std::vector<AddedToken> matched;
  for (const AddedToken& token : added) {
    if (!token.special || !split_special_tokens) matched.push_back(token);
  }
  return matched;
}

std::optional<int64_t> Vocabulary::find(const std::string& content) const {
  if (content.empty()) return std::nullopt;
  const auto token = std::find_if(added.begin(), added.end(),
                                  [&](const AddedToken& each) { return each.content == content; });
  if (token != added.end()) return token->id;
  const auto plain = tokens.find(content);
  return plain == tokens.end() ? std::nullopt : std::optional(plain->second);
}

Vocabulary parse_tokenizer_json(std::string_view text, const std::string& source) {
  TokenizerJson reader(source);
  return reader.read(reader.parse(text));
}

Vocabulary read_tokenizer_json(const fs::path& path) {
  Vocabulary vocabulary = parse_tokenizer_json(read_vocabulary_file(path), path.string());
  add_companions(read_companions(path.parent_path()), vocabulary);
  return vocabulary;
}

}  // namespace fsdp::data
