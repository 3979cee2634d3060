#include "data/tokenizers/rank_vocabulary.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <fstream>

#include "base/util/error.h"
#include "base/util/hash.h"
#include "data/tokenizers/base64.h"
#include "data/tokenizers/companions.h"
#include "data/tokenizers/piece_model.h"
#include "data/tokenizers/utf8.h"
#include "data/tokenizers/vocabulary_reader.h"

namespace fsdp::data {
namespace fs = std::filesystem;

const char* const kO200kSplitPattern =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
const char* const kTekkenSplitPattern =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

namespace {

/// Limit on a token's bytes, above every existing token's. The work for a token's merges grows with it.
constexpr size_t kMostTokenBytes = 1024;

// OpenAI's patterns (tiktoken's openai_public.py), without the possessive quantifiers that change nothing.
constexpr const char* kCl100kPattern =
    R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s+(?!\s|\S)|\s*[\r\n]|\s+(?!\S)|\s)";
/// A published file of tiktoken.
struct KnownFile {
  const char* name;
  uint64_t hash;  ///< XXH3 of the file's bytes
  const char* pattern;
  bool is_nfc;
  std::vector<std::pair<const char*, int64_t>> special;
  const char *begin, *end;  ///< tokens that begin and end texts; null: none
};

const std::vector<KnownFile>& known_files() {
  static const std::vector<KnownFile> kFiles = {
      {"cl100k_base",
       0xaa5d7bf38900641a,
       kCl100kPattern,
       false,
       {{"<|endoftext|>", 100257},
        {"<|fim_prefix|>", 100258},
        {"<|fim_middle|>", 100259},
        {"<|fim_suffix|>", 100260},
        {"<|endofprompt|>", 100276}},
       nullptr,
       "<|endoftext|>"},
      {"o200k_base",
       0x72a095e82ca109d6,
       kO200kSplitPattern,
       false,
       {{"<|endoftext|>", 199999}, {"<|endofprompt|>", 200018}},
       nullptr,
       "<|endoftext|>"},
      {"Llama 3",
       0xe7339703bb9e9d7b,
       kLlama3SplitPattern,
       false,
       {{"<|begin_of_text|>", 128000},
        {"<|end_of_text|>", 128001},
        {"<|start_header_id|>", 128006},
        {"<|end_header_id|>", 128007},
        {"<|eom_id|>", 128008},
        {"<|eot_id|>", 128009},
        {"<|python_tag|>", 128010}},
       "<|begin_of_text|>",
       "<|end_of_text|>"},
      {"Qwen",
       0x9f288efcb5368aab,
       kQwen2SplitPattern,
       true,
       {{"<|endoftext|>", 151643}, {"<|im_start|>", 151644}, {"<|im_end|>", 151645}},
       nullptr,
       "<|endoftext|>"},
  };
  return kFiles;
}

/// The special tokens of tekken.json files without a list of them (mistral-common's
/// DEPRECATED_SPECIAL_TOKENS), by id.
constexpr auto kTekkenSpecial = std::to_array<const char*>({"<unk>",
                                                            "<s>",
                                                            "</s>",
                                                            "[INST]",
                                                            "[/INST]",
                                                            "[AVAILABLE_TOOLS]",
                                                            "[/AVAILABLE_TOOLS]",
                                                            "[TOOL_RESULTS]",
                                                            "[/TOOL_RESULTS]",
                                                            "[TOOL_CALLS]",
                                                            "[IMG]",
                                                            "<pad>",
                                                            "[IMG_BREAK]",
                                                            "[IMG_END]",
                                                            "[PREFIX]",
                                                            "[MIDDLE]",
                                                            "[SUFFIX]",
                                                            "[SYSTEM_PROMPT]",
                                                            "[/SYSTEM_PROMPT]",
                                                            "[TOOL_CONTENT]"});

/// A vocabulary under construction: tokens in the order of their ranks.
class Ranks {
 public:
  Ranks(const VocabularyReader& reader, int64_t first_id) : reader_(reader), first_id_(first_id) {
    out_.source = reader.source();
    out_.ignore_merges = true;
    out_.ranks_are_ids = true;
  }

  void add(std::string_view base64, int64_t rank) {
    const auto bytes = from_base64(base64);
    if (rank != static_cast<int64_t>(count_)) {
      reader_.damaged(concat("has the rank ", rank, " in the place of ", count_));
    }
    if (!bytes || bytes->empty() || bytes->size() > kMostTokenBytes) {
      reader_.damaged(concat("has a token of rank ", rank, " that is not the base64 of 1 to ",
                             kMostTokenBytes, " bytes"));
    }
    const int64_t id = reader_.id(first_id_ + rank, "rank");
    if (!out_.tokens.emplace(symbols_of(*bytes), id).second) {
      reader_.damaged(concat("has the token of rank ", rank, " twice"));
    }
    add_merges(*bytes);
    ++count_;
  }

  Vocabulary take() {
    for (int byte = 0; byte < 256; ++byte) {
      if (!out_.tokens.contains(byte_symbol(static_cast<unsigned char>(byte)))) {
        reader_.damaged(concat("has no token for the byte ", byte));
      }
    }
    return std::move(out_);
  }

 private:
  static std::string symbols_of(std::string_view bytes) {
    std::string symbols;
    for (const char byte : bytes) symbols += byte_symbol(static_cast<unsigned char>(byte));
    return symbols;
  }

  /// Adds all pairs of earlier tokens that form a token.
  void add_merges(std::string_view bytes) {
    for (size_t place = 1; place < bytes.size(); ++place) {
      std::string left = symbols_of(bytes.substr(0, place));
      if (!out_.tokens.contains(left)) continue;
      std::string right = symbols_of(bytes.substr(place));
      if (out_.tokens.contains(right)) out_.merges.emplace_back(std::move(left), std::move(right));
    }
  }

  const VocabularyReader& reader_;
  int64_t first_id_;
  size_t count_ = 0;
  Vocabulary out_;
};

int64_t number_at(const VocabularyReader& reader, const nlohmann::json& object, const char* key) {
  return reader.id(VocabularyReader::at(object, key), key);
}

}  // namespace

Vocabulary parse_tekken(std::string_view text, const std::string& source) {
  using json = nlohmann::json;
  const VocabularyReader reader(source);
  const json root = reader.parse(text);
  const json& config = reader.object(VocabularyReader::at(root, "config"), "\"config\"");
  const int64_t size = number_at(reader, config, "default_vocab_size");
  const int64_t special = number_at(reader, config, "default_num_special_tokens");
  const json& tokens = VocabularyReader::at(root, "vocab");
  if (!tokens.is_array() || size < special || static_cast<int64_t>(tokens.size()) < size - special) {
    reader.damaged("has fewer tokens in \"vocab\" than its \"config\" says");
  }
  Ranks ranks(reader, special);
  for (int64_t rank = 0; rank < size - special; ++rank) {
    const json& token = reader.object(tokens[static_cast<size_t>(rank)], "in each of \"vocab\"");
    ranks.add(reader.text(token, "token_bytes"), number_at(reader, token, "rank"));
  }
  Vocabulary out = ranks.take();
  out.splits.push_back({.pattern = reader.text(config, "pattern")});
  const json& listed = VocabularyReader::at(root, "special_tokens");
  int64_t known = 0;
  const auto add = [&](const std::string& content, int64_t id) {
    if (content.empty() || id >= special) reader.damaged(concat("has a special token with the id ", id));
    out.added.push_back({.content = content, .id = id, .special = true});
    ++known;
  };
  for (const json& token : listed.is_array() ? listed : json::array()) {
    reader.object(token, "in each of \"special_tokens\"");
    add(reader.text(token, "token_str"), number_at(reader, token, "rank"));
  }
  if (listed.is_null()) {
    for (const char* content : kTekkenSpecial) {
      if (known < special) add(content, known);
    }
  }
  for (int64_t id = known; id < special; ++id) add(concat("<SPECIAL_", id, ">"), id);
  if (const auto begin = out.find("<s>")) out.begin_ids = std::vector<int64_t>{*begin};
  if (out.find("</s>")) out.end_of_text = "</s>";
  return out;
}

Vocabulary read_tekken(const fs::path& path) {
  Vocabulary vocabulary = parse_tekken(read_vocabulary_file(path), path.string());
  add_companions(read_companions(path.parent_path()), vocabulary);
  return vocabulary;
}

bool is_tiktoken(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::array<char, 4096> bytes{};
  file.read(bytes.data(), bytes.size());
  const std::string_view begin(bytes.data(), static_cast<size_t>(file.gcount()));
  const size_t space = begin.substr(0, begin.find('\n')).find(' ');
  return space != std::string_view::npos && space > 0 && from_base64(begin.substr(0, space)) &&
         begin.substr(space).starts_with(" 0");
}

Vocabulary parse_tiktoken(std::string_view text, const std::string& source) {
  const VocabularyReader reader(source);
  Ranks ranks(reader, 0);
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    const size_t space = line.find(' ');
    int64_t rank = -1;
    const auto [end, error] =
        std::from_chars(line.data() + std::min(space + 1, line.size()), line.data() + line.size(), rank);
    if (space == std::string_view::npos || error != std::errc() || end != line.data() + line.size()) {
      reader.damaged(
          concat("has the line \"", for_message(line), "\", which is not a token in base64 and a rank"));
    }
    ranks.add(line.substr(0, space), rank);
  }
  return ranks.take();
}

Vocabulary read_tiktoken(const fs::path& path) {
  const std::string text = read_vocabulary_file(path);
  const uint64_t hash = util::xxh3_64(text.data(), text.size());
  std::vector<std::string> names;
  for (const KnownFile& file : known_files()) {
    names.emplace_back(file.name);
    if (file.hash != hash) continue;
    Vocabulary out = parse_tiktoken(text, path.string());
    out.splits.push_back({.pattern = file.pattern});
    if (file.is_nfc) out.normalizer.emplace_back().form = UnicodeForm::kNfc;
    for (const auto& [content, id] : file.special) {
      out.added.push_back({.content = content, .id = id, .special = true});
    }
    if (file.begin != nullptr) out.begin_ids = std::vector<int64_t>{*out.find(file.begin)};
    out.end_of_text = file.end;
    add_companions(read_companions(path.parent_path()), out);
    return out;
  }
  VocabularyReader(path.string())
      .refuse(
          "is a file of tiktoken other than those of " + util::join(names, ", ") +
              ", and does not say how texts are split and which tokens are special",
          "give the tokenizer.json of the model, which save_pretrained() of Hugging Face's AutoTokenizer writes");
}

}  // namespace fsdp::data
