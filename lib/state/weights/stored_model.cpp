#include "state/weights/stored_model.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <memory>
#include <string_view>
#include <utility>

#include "base/util/error.h"
#include "base/util/shape.h"
#include "base/util/text.h"
#include "model/families/architectures.h"
#include "model/families/families.h"
#include "state/manifest/folders.h"
#include "state/manifest/manifest.h"
#include "state/weights/adapter.h"
#include "state/weights/shard_set.h"

namespace fsdp::checkpoint {
namespace fs = std::filesystem;

namespace {

/// Buffers that older releases of transformers stored among the weights, recognised by their names in the
/// file. They are not read, because a model computes them from its config.
class KnownBuffers {
 public:
  KnownBuffers(const nn::Family& family, int64_t layers) : family_(family), layers_(layers) {}

  bool contains(const std::string& name, const std::vector<int64_t>& shape) const {
    std::string_view rest = name;
    const std::string inner = family_.inner + ".", blocks = family_.blocks + ".";
    if (rest.starts_with(inner)) rest.remove_prefix(inner.size());
    if (rest == kFrequencies) return family_.is_rotary() && shape.size() == 1;
    if (!rest.starts_with(blocks)) return false;
    rest.remove_prefix(blocks.size());
    int64_t layer = 0;
    const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), layer);
    if (error != std::errc() || layer < 0 || layer >= layers_) return false;
    rest.remove_prefix(static_cast<size_t>(end - rest.data()));
    const std::string attention = concat(".", family_.attention, ".");
    if (!rest.starts_with(attention)) return false;
    rest.remove_prefix(attention.size());
    if (rest == kFrequencies) return family_.is_rotary() && shape.size() == 1;
    const bool has_masks = family_.norm == nn::NormKind::kLayer;  // GPT-2 and GPT-NeoX
    return has_masks && ((rest == "bias" && shape.size() == 4) || (rest == "masked_bias" && shape.empty()));
  }

 private:
  static constexpr std::string_view kFrequencies = "rotary_emb.inv_freq";
  const nn::Family& family_;
  int64_t layers_;
};

/// Whether two tensors of one shape have the same values. Reads both.
bool are_equal(const Weights& source, const std::string& a, const std::string& b) {
  constexpr int64_t kStep = int64_t{1} << 20;
  const int64_t numel = source.numel(a);
  at::Tensor values = at::empty({std::min(kStep, numel)}, at::TensorOptions(at::kFloat)),
             others = values.clone();
  for (int64_t at = 0; at < numel; at += kStep) {
    const int64_t count = std::min(kStep, numel - at);
    const at::Tensor of_a = values.narrow(0, 0, count), of_b = others.narrow(0, 0, count);
    source.read_range_into(a, at, of_a);
    source.read_range_into(b, at, of_b);
    if (std::memcmp(of_a.const_data_ptr(), of_b.const_data_ptr(), of_a.nbytes()) != 0) return false;
  }
  return true;
}

}  // namespace

void WeightMisfits::refuse_any(const std::string& who, const std::string& config) const {
  constexpr size_t kMostListed = 20;
  std::vector<std::string> problems;
  const auto add = [&problems](const char* what, const std::vector<std::string>& names) {
    if (!names.empty()) problems.push_back(concat(what, ": ", util::name_list(names, ", ", kMostListed)));
  };
  add("missing", missing);
  add("unexpected", unexpected);
  add("of different shape", misshapen);
  add("of a head that is not tied", untied);
  if (problems.empty()) return;
  fail(ErrorKind::kCheckpoint, "the weights ", who, " do not match ", config, "; ",
       util::join(problems, "; "),
       untied.empty()
           ? ""
           : "; set \"tie_word_embeddings\": false in the model's config.json to use the stored head, as "
             "transformers 5 does, or remove it from the file to use the embedding");
}

void compare_shape(const std::string& name, const std::vector<int64_t>& found,
                   const std::vector<int64_t>& expected, WeightMisfits& misfits) {
  if (found == expected) return;
  misfits.misshapen.push_back(
      concat(name, " (", util::shape_text(found), " instead of ", util::shape_text(expected), ")"));
}

namespace {

/// Records a stored head of a tied model that differs from the embedding.
void compare_tied_head(const Weights& source, const std::string& embedding, const std::string& head,
                       WeightMisfits& misfits) {
  if (head == embedding) return;
  const TensorInfo &tied = source.info(embedding), &stored = source.info(head);
  if (!c10::isFloatingType(stored.dtype)) {
    misfits.unexpected.push_back(head + " (not of a floating-point type)");
  } else if (stored.shape != tied.shape) {
    compare_shape(head, stored.shape, tied.shape, misfits);
  } else if (c10::isFloatingType(tied.dtype) && !are_equal(source, embedding, head)) {
    misfits.untied.push_back(concat(head, " (its values differ from those of ", embedding, ")"));
  }
}

}  // namespace

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
  const KnownBuffers buffers(family, options.num_hidden_layers);
  WeightMisfits& misfits = matched.misfits;
  for (const std::string& name : source.names()) {
    std::string known = shapes.contains(name) ? name : prefix + name;
    if (shapes.contains(known)) {
      if (!matched.names.emplace(known, name).second) misfits.unexpected.push_back(name + " (stored twice)");
    } else if (!buffers.contains(name, source.shape(name)) &&
               !(options.tie_word_embeddings && name == head) && !util::matches_any(name, may_be_unused)) {
      misfits.unexpected.push_back(name);
    }
  }
  // A tied weight may be stored under either name.
  const bool has_tied_head = options.tie_word_embeddings && source.contains(head);
  if (has_tied_head) matched.names.emplace(embedding, head);
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
  if (has_tied_head && !util::matches_any(head, may_be_unused))
    compare_tied_head(source, matched.names.at(embedding), head, misfits);
  return matched;
}

std::vector<std::string> extend_vocabulary(Weights& weights, const nn::ModelOptions& options) {
  std::vector<std::string> sentences;
  if (!nn::is_built_in_architecture(options.architecture)) return sentences;
  const nn::Family& family = nn::family_of(options);
  const std::string embedding = family.token_weight(), head = family.head_weight();
  for (const std::string& name : weights.names()) {
    if (name != head && name != embedding && family.inner + "." + name != embedding) continue;
    const TensorInfo& info = weights.info(name);
    if (info.shape.size() != 2 || info.shape[1] != options.hidden_size || info.shape[0] < 1 ||
        info.shape[0] >= options.vocab_size || !c10::isFloatingType(info.dtype)) {
      continue;
    }
    const int64_t stored = info.shape[0];
    const auto described = described_model(weights.path());
    if (described && described->options.vocab_size != stored) continue;
    weights.extend(name, options.vocab_size);
    sentences.push_back(concat("rows ", stored, " to ", options.vocab_size - 1, " of ", name,
                               " are the mean of the ", stored, " stored rows"));
  }
  return sentences;
}

void refuse_initial(const WeightMisfits& misfits, const Weights& source) {
  try {
    misfits.refuse_any("of model.init_from " + source.path().string(), "[model]");
  } catch (const util::Error& error) {
    if (misfits.unexpected.empty() && misfits.untied.empty()) throw;
    fail(error.kind(), error.what(),
         "; to allow tensors that the model does not use, list them in model.init_unused = [\"PATTERN\"]");
  }
}

std::map<std::string, std::string> match_initial_weights(const Weights& source,
                                                         const nn::ModelOptions& options) {
  MatchedWeights matched = match_weights(source, options, options.init_unused);
  refuse_initial(matched.misfits, source);
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
