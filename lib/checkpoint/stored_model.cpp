#include "checkpoint/stored_model.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "checkpoint/adapter.h"
#include "checkpoint/folders.h"
#include "checkpoint/hugging_face_config.h"
#include "checkpoint/manifest.h"
#include "checkpoint/shard_set.h"
#include "nn/architectures.h"
#include "nn/families.h"
#include "util/error.h"
#include "util/text.h"

namespace fsdp::checkpoint {
namespace fs = std::filesystem;
using util::concat;
using util::ErrorKind;
using util::fail;

namespace {

constexpr size_t kMostListed = 20;

/// Buffers that older releases of transformers stored among the weights.
bool is_buffer(const std::string& name) {
  for (const char* buffer : {".attn.bias", ".attn.masked_bias", ".attention.bias", ".attention.masked_bias",
                             ".rotary_emb.inv_freq"}) {
    if (name.ends_with(buffer)) return true;
  }
  return false;
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
  if (!misshapen.empty()) problems.push_back("of different shape: " + listed(misshapen));
  if (problems.empty()) return;
  fail(ErrorKind::kCheckpoint, "the weights ", who, " do not match ", config, "; ",
       util::join(problems, "; "));
}

void compare_shape(const std::string& name, const std::vector<int64_t>& found,
                   const std::vector<int64_t>& expected, Misfits& misfits) {
  if (found == expected) return;
  misfits.misshapen.push_back(
      concat(name, " (", shape_text(found), " instead of ", shape_text(expected), ")"));
}

MatchedWeights match_weights(const Weights& source, const nn::ModelOptions& options,
                             const std::vector<std::string>& may_be_unused) {
  MatchedWeights matched;
  if (!nn::is_built_in_architecture(options.architecture)) {
    for (const std::string& name : source.names()) matched.names.emplace(name, name);
    return matched;
  }
  const std::map<std::string, std::vector<int64_t>> shapes = nn::weight_shapes(options);
  const nn::Family& family = nn::family_of(options);
  const std::string prefix = family.inner + ".", embedding = family.token_weight(),
                    head = family.head_weight();
  Misfits& misfits = matched.misfits;
  for (const std::string& name : source.names()) {
    std::string known = shapes.contains(name) ? name : prefix + name;
    if (shapes.contains(known)) {
      if (!matched.names.emplace(known, name).second) misfits.unexpected.push_back(name + " (stored twice)");
    } else if (!is_buffer(name) && !(options.tie_word_embeddings && name == head) &&
               !util::matches_any(name, may_be_unused)) {
      misfits.unexpected.push_back(name);
    }
  }
  // A tied weight may be stored under either name.
  if (options.tie_word_embeddings && source.contains(head)) matched.names.emplace(embedding, head);
  for (const auto& [name, shape] : shapes) {
    const auto found = matched.names.find(name);
    if (found == matched.names.end()) {
      misfits.missing.push_back(name);
      continue;
    }
    const TensorInfo& info = source.info(found->second);
    compare_shape(found->second, info.shape, shape, misfits);
    if (!c10::isFloatingType(info.dtype)) {
      misfits.unexpected.push_back(found->second + " (not of a floating-point type)");
    }
  }
  return matched;
}

std::map<std::string, std::string> match_initial_weights(const Weights& source,
                                                         const nn::ModelOptions& options) {
  MatchedWeights matched = match_weights(source, options, options.init_unused);
  try {
    matched.misfits.refuse_any("of model.init_from " + source.path().string(), "[model]");
  } catch (const util::Error& error) {
    if (matched.misfits.unexpected.empty()) throw;
    fail(error.kind(), error.what(),
         "; to allow tensors that the model does not use, list them in model.init_unused = [\"PATTERN\"]");
  }
  return std::move(matched.names);
}

StoredModel open_model(const fs::path& path, bool ema) {
  const bool is_checkpoint = format_of(path) == WeightsFormat::kCheckpoint;
  if (ema && !is_checkpoint) {
    fail(ErrorKind::kUsage, "averages of weights are part of checkpoints, but ", path.string(),
         " is not a checkpoint; fsdp-ckpt consolidate --ema writes them as weights");
  }
  const std::optional<DescribedModel> described = described_model(path);
  if (!described && is_checkpoint) {
    fail(ErrorKind::kCheckpoint, (checkpoint_folder(path) / kManifestName).string(),
         " does not describe the model; fsdp-ckpt consolidate writes its weights, which need "
         "a config.json beside them");
  }
  if (!described) {
    fail(ErrorKind::kCheckpoint, "there is no model config at ", config_beside(path).string(),
         "; put the config.json of the weights there");
  }
  StoredModel model{*described, open_weights(is_checkpoint ? described->folder : path), {}};
  if (ema && model.config.contains(kAdapterKey)) {
    fail(ErrorKind::kUsage, "averages of weights must be those of a whole model, but ", path.string(),
         " holds adapters; leave out `ema`");
  }
  if (ema) {
    const auto shards = std::make_shared<ShardedSource>(model.folder);
    require_averages(*shards);
    model.weights.add(shards, kAveragePrefix);
  }
  MatchedWeights matched = match_weights(model.weights, model.options);
  matched.misfits.refuse_any(path.string(), model.where);
  model.names = std::move(matched.names);
  return model;
}

}  // namespace fsdp::checkpoint
