#include "checkpoint/hugging_face_model.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/hugging_face_config.h"
#include "checkpoint/hugging_face_folder.h"
#include "checkpoint/manifest.h"
#include "checkpoint/raw_file.h"
#include "checkpoint/sharded_source.h"
#include "checkpoint/weights.h"
#include "util/error.h"
#include "util/text.h"

namespace fsdp::checkpoint {
namespace fs = std::filesystem;
using nlohmann::json;
using util::concat;
using util::ErrorKind;
using util::fail;

namespace {

constexpr int64_t kLargestConfigBytes = 10'000'000;
constexpr int kDeepestLevel = 16;
constexpr size_t kMostListed = 20;
constexpr const char* kHead = "lm_head.weight";

json read_config(const ImportRequest& request, fs::path& path) {
  std::error_code error;
  path = request.config;
  if (path.empty()) {
    const bool is_folder = fs::is_directory(request.source, error);
    path = (is_folder ? request.source : request.source.parent_path()) / "config.json";
    if (!fs::exists(path, error)) {
      fail(ErrorKind::kCheckpoint, "expected the model's config at ", path.string(),
           " and found nothing; name it with --config");
    }
  }
  RawFile file = RawFile::open(path);
  if (file.size_bytes() > kLargestConfigBytes) {
    fail(ErrorKind::kCheckpoint, path.string(), " has ", file.size_bytes(), " bytes, more than any config");
  }
  std::string text(static_cast<size_t>(file.size_bytes()), '\0');
  file.read_at(0, text.data(), static_cast<int64_t>(text.size()));
  return parse_json(text, kDeepestLevel, path.string());
}

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

struct Misfits {
  std::vector<std::string> missing, unexpected, misshapen;

  void refuse_any(const std::string& who, const std::string& config) const {
    std::vector<std::string> problems;
    if (!missing.empty()) problems.push_back("missing: " + listed(missing));
    if (!unexpected.empty()) problems.push_back("unexpected: " + listed(unexpected));
    if (!misshapen.empty()) problems.push_back("of another shape: " + listed(misshapen));
    if (problems.empty()) return;
    fail(ErrorKind::kCheckpoint, "the weights ", who, " are not those that ", config, " describes; ",
         util::join(problems, "; "));
  }
};

using Shapes = std::map<std::string, std::vector<int64_t>>;

void compare_shape(const std::string& name, const std::vector<int64_t>& found,
                   const std::vector<int64_t>& expected, Misfits& misfits) {
  if (found == expected) return;
  misfits.misshapen.push_back(
      concat(name, " (", shape_text(found), " where ", shape_text(expected), " is expected)"));
}

/// Which tensor of the source is which weight: model's name -> source's name.
std::map<std::string, std::string> match_names(const Weights& source, const nn::ModelOptions& options,
                                               const Shapes& shapes, Misfits& misfits) {
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

}  // namespace

ShardedResult import_model(const ImportRequest& request) {
  if (format_of(request.source) == WeightsFormat::kCheckpoint) {
    fail(ErrorKind::kUsage, "expected safetensors at ", request.source.string(),
         " and found a checkpoint; fsdp-ckpt reshard writes it anew for another world size");
  }
  fs::path config_path;
  json config = read_config(request, config_path);
  const nn::ModelOptions options = options_from_hugging_face(config, config_path.string());
  // A part of the model without its head (LlamaModel) becomes the whole one, where the head is tied.
  const json own = hugging_face_config(options);
  config["architectures"] = own["architectures"];

  const Shapes shapes = hugging_face_shapes(options);
  const Weights source = open_weights(request.source);
  Misfits misfits;
  const std::map<std::string, std::string> matched = match_names(source, options, shapes, misfits);
  std::vector<ShardedTensor> tensors;
  for (const auto& [name, shape] : shapes) {
    auto found = matched.find(name);
    if (found == matched.end()) {
      misfits.missing.push_back(name);
      continue;
    }
    TensorInfo info = source.info(found->second);
    compare_shape(found->second, info.shape, shape, misfits);
    if (!c10::isFloatingType(info.dtype)) {
      misfits.unexpected.push_back(found->second + " (not of a floating-point type)");
    }
    if (request.dtype) info.dtype = *request.dtype;
    tensors.push_back({found->second, {kWeightsPrefix + name, info.shape, info.dtype}});
  }
  misfits.refuse_any(request.source.string(), config_path.string());
  return write_sharded({.folder = request.output,
                        .world_size = request.world_size,
                        .contents = Contents::kWeights,
                        .training = nullptr,
                        .model = std::move(config),
                        .progress = request.progress},
                       source, tensors);
}

ConsolidateResult export_model(const ExportRequest& request) {
  const ShardedSource source(request.checkpoint_folder);
  const std::string manifest = (request.checkpoint_folder / kManifestName).string();
  if (source.manifest().model.is_null()) {
    fail(
        ErrorKind::kCheckpoint, manifest,
        " does not say what the model is, so it cannot be exported; fsdp-ckpt consolidate writes its weights "
        "alone");
  }
  Shapes shapes = hugging_face_shapes(
      options_from_hugging_face(source.manifest().model, concat(manifest, ": \"model\"")));
  Misfits misfits;
  for (const TensorInfo& info : consolidated_weights(source, request.dtype)) {
    auto expected = shapes.find(info.name);
    if (expected == shapes.end()) {
      misfits.unexpected.push_back(info.name);
      continue;
    }
    compare_shape(info.name, info.shape, expected->second, misfits);
    shapes.erase(expected);
  }
  for (const auto& [name, shape] : shapes) misfits.missing.push_back(name);
  misfits.refuse_any(request.checkpoint_folder.string(), manifest);
  std::error_code error;
  if (request.output.extension() == ".safetensors" && !fs::is_directory(request.output, error)) {
    fail(ErrorKind::kUsage, "expected the name of a folder and found ", request.output.string(),
         "; fsdp-ckpt consolidate writes one file");
  }
  return consolidate(request.checkpoint_folder, request.output,
                     {.dtype = request.dtype,
                      .ema = request.ema,
                      .overwrite = request.overwrite,
                      .max_file_bytes = request.max_file_bytes,
                      .progress = request.progress});
}

}  // namespace fsdp::checkpoint
