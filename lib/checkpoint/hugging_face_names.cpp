#include "checkpoint/hugging_face_names.h"

#include <algorithm>

#include "checkpoint/manifest.h"
#include "checkpoint/raw_file.h"
#include "util/error.h"
#include "util/text.h"

namespace fsdp::checkpoint {
namespace fs = std::filesystem;
using util::concat;
using util::ErrorKind;
using util::fail;

namespace {

constexpr int64_t kLargestConfigBytes = 10'000'000;
constexpr int kDeepestLevel = 16;
constexpr size_t kMostListed = 20;
constexpr const char* kHead = "lm_head.weight";

/// What older releases of transformers stored among the weights.
bool is_buffer(const std::string& name) {
  return name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias") ||
         name.ends_with(".rotary_emb.inv_freq");
}

/// "a, b, c and 7 more".
std::string listed(const std::vector<std::string>& names) {
  std::vector<std::string> first(names.begin(), names.begin() + std::min(names.size(), kMostListed));
  std::string text = util::join(first, ", ");
  if (names.size() > first.size()) text += concat(" and ", names.size() - first.size(), " more");
  return text;
}

}  // namespace

void Misfits::refuse_any(const std::string& who, const std::string& config) const {
  std::vector<std::string> problems;
  if (!missing.empty()) problems.push_back("missing: " + listed(missing));
  if (!unexpected.empty()) problems.push_back("unexpected: " + listed(unexpected));
  if (!misshapen.empty()) problems.push_back("of another shape: " + listed(misshapen));
  if (problems.empty()) return;
  fail(ErrorKind::kCheckpoint, "the weights ", who, " are not those that ", config, " describes; ",
       util::join(problems, "; "));
}

void compare_shape(const std::string& name, const std::vector<int64_t>& found,
                   const std::vector<int64_t>& expected, Misfits& misfits) {
  if (found == expected) return;
  misfits.misshapen.push_back(
      concat(name, " (", shape_text(found), " where ", shape_text(expected), " is expected)"));
}

std::map<std::string, std::string> match_names(const Weights& source, const nn::ModelOptions& options,
                                               const std::map<std::string, std::vector<int64_t>>& shapes,
                                               Misfits& misfits) {
  const bool gpt2 = options.architecture == "gpt2";
  const std::string prefix = gpt2 ? "transformer." : "model.";
  const std::string embedding = gpt2 ? "transformer.wte.weight" : "model.embed_tokens.weight";
  std::map<std::string, std::string> matched;
  for (const std::string& name : source.names()) {
    std::string known = shapes.contains(name) ? name : prefix + name;
    if (shapes.contains(known)) {
      if (!matched.emplace(known, name).second) misfits.unexpected.push_back(name + " (there twice)");
    } else if (!is_buffer(name) && !(options.tie_word_embeddings && name == kHead)) {
      misfits.unexpected.push_back(name);
    }
  }
  // A tied weight may be stored under either of its names.
  if (options.tie_word_embeddings && source.contains(kHead)) matched.emplace(embedding, kHead);
  return matched;
}

fs::path config_beside(const fs::path& weights) {
  std::error_code error;
  return (fs::is_directory(weights, error) ? weights : weights.parent_path()) / "config.json";
}

nlohmann::json read_config_json(const fs::path& path) {
  RawFile file = RawFile::open(path);
  if (file.size_bytes() > kLargestConfigBytes) {
    fail(ErrorKind::kCheckpoint, path.string(), " has ", file.size_bytes(), " bytes, more than any config");
  }
  std::string text(static_cast<size_t>(file.size_bytes()), '\0');
  file.read_at(0, text.data(), static_cast<int64_t>(text.size()));
  return parse_json(text, kDeepestLevel, path.string());
}

}  // namespace fsdp::checkpoint
