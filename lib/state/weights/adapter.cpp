#include "state/weights/adapter.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <set>
#include <utility>

#include "base/dtype/dtype.h"
#include "base/objects/object_name.h"
#include "base/util/error.h"
#include "base/util/file.h"
#include "base/util/hash.h"
#include "base/util/shape.h"
#include "base/util/text.h"
#include "model/nn/lora.h"
#include "state/description/described_model.h"
#include "state/manifest/folders.h"
#include "state/weights/shard_set.h"
#include "state/weights/stored_model.h"

namespace fsdp::checkpoint {
namespace fs = std::filesystem;
using nlohmann::json;

namespace {

constexpr int64_t kIdentifyingNumbers = 4096;

/// Text for a difference in what two adapters compute: "lora.rank must be 8, as in WHERE, but is 16". Empty
/// if there is none.
std::string difference(const nn::LoraOptions& found, const nn::LoraOptions& expected,
                       const std::string& where) {
  const auto text = [&](const char* key, const auto& theirs, const auto& own) {
    return theirs == own ? std::string()
                         : concat(key, " must be ", theirs, ", as in ", where, ", but is ", own);
  };
  const auto name = [](bool value) { return std::string(value ? "true" : "false"); };
  for (const std::string& each :
       {text("lora.rank", found.rank, expected.rank), text("lora.alpha", found.alpha, expected.alpha),
        text("lora.use_rslora", name(found.use_rslora), name(expected.use_rslora)),
        text("lora.dora", name(found.dora), name(expected.dora))}) {
    if (!each.empty()) return each;
  }
  return {};
}

class MergedSource final : public TensorSource {
 public:
  MergedSource(Weights base, std::map<std::string, std::string> names, Weights adapters,
               const AdapterDescription& adapter)
      : base_(std::move(base)), names_(std::move(names)), adapters_(std::move(adapters)), adapter_(adapter) {
    for (const std::string& layer : adapter.layers) {
      const std::string weight = layer + ".weight";
      if (!names_.contains(weight)) {
        fail(ErrorKind::kCheckpoint, "the weights ", base_.path().string(), " must have ", weight,
             ", which the adapters in ", adapters_.path().string(), " change, but lack it; restore them");
      }
      adapted_.emplace(weight, layer);
      require_shapes(layer, base_.shape(names_.at(weight)));
    }
  }

  const fs::path& path() const override { return adapters_.path(); }

  std::vector<TensorInfo> infos() const override {
    std::vector<TensorInfo> infos;
    for (const auto& [name, stored] : names_) {
      infos.push_back(base_.info(stored));
      infos.back().name = name;
    }
    return infos;
  }

  void read(const std::string& name, int64_t begin, int64_t end, void* out) const override {
    const std::string& stored = names_.at(name);
    const at::Tensor values = at::from_blob(out, {end - begin}, at::TensorOptions(base_.dtype(stored)));
    const auto layer = adapted_.find(name);
    if (layer == adapted_.end()) return base_.read_range_into(stored, begin, values);
    if (merged_name_ != name) {
      merged_ = merged(stored, layer->second);
      merged_name_ = name;
    }
    convert_values(merged_.view({-1}).narrow(0, begin, end - begin), values, name, /*saturates=*/false);
  }

 private:
  void require_shapes(const std::string& layer, const std::vector<int64_t>& weight) const {
    WeightMisfits misfits;
    const auto compare = [&](nn::LoraPart part, const std::vector<int64_t>& expected) {
      const std::string name = nn::lora_parameter(layer, part);
      compare_shape(name, adapters_.shape(name), expected, misfits);
    };
    if (weight.size() != 2) misfits.misshapen.push_back(layer);
    if (weight.size() == 2) {
      const int64_t out = weight[adapter_.transposed ? 1 : 0], in = weight[adapter_.transposed ? 0 : 1];
      compare(nn::LoraPart::kA, {adapter_.lora.rank, in});
      compare(nn::LoraPart::kB, {out, adapter_.lora.rank});
      if (adapter_.lora.dora) compare(nn::LoraPart::kMagnitude, {out});
    }
    misfits.refuse_any("of the adapters in " + adapters_.path().string(),
                       "their base " + base_.path().string());
  }

  at::Tensor in_float32(const Weights& weights, const std::string& name) const {
    at::Tensor values = at::empty(weights.shape(name), at::TensorOptions(at::kFloat));
    weights.read_into(name, values);
    return values;
  }

  at::Tensor merged(const std::string& stored, const std::string& layer) const {
    const auto part = [&](nn::LoraPart which) {
      return in_float32(adapters_, nn::lora_parameter(layer, which));
    };
    return nn::merged_weight(in_float32(base_, stored), part(nn::LoraPart::kA), part(nn::LoraPart::kB),
                             adapter_.lora.dora ? part(nn::LoraPart::kMagnitude) : at::Tensor(),
                             nn::lora_scale(adapter_.lora), adapter_.transposed);
  }

  Weights base_;
  std::map<std::string, std::string> names_;  ///< the model's name -> the base's name
  Weights adapters_;
  AdapterDescription adapter_;
  std::map<std::string, std::string> adapted_;  ///< weight -> layer
  mutable std::string merged_name_;
  mutable at::Tensor merged_;  ///< the weight that was merged last
};

}  // namespace

nn::LoraOptions lora_of_json(const json& config, const std::string& where) {
  const json& rank = config.at("r");
  if (!rank.is_number_integer() || rank < 1) {
    fail(ErrorKind::kCheckpoint, where,
         ": \"r\", the rank of the adapters, must be a whole number of at least 1, but is ",
         rank.dump(-1, ' ', true, json::error_handler_t::replace), "; save the adapters again");
  }
  nn::LoraOptions lora;
  lora.rank = rank.get<int64_t>();
  lora.alpha = config.at("lora_alpha").get<double>();
  lora.dropout = config.value("lora_dropout", 0.0);
  lora.use_rslora = config.value("use_rslora", false);
  lora.dora = config.value("use_dora", false);
  return lora;
}

json lora_json(const nn::LoraOptions& lora) {
  json config = {{"r", lora.rank},
                 {"lora_dropout", lora.dropout},
                 {"use_rslora", lora.use_rslora},
                 {"use_dora", lora.dora}};
  const auto whole = static_cast<int64_t>(lora.alpha);
  // PEFT declares an integer.
  config["lora_alpha"] = static_cast<double>(whole) == lora.alpha ? json(whole) : json(lora.alpha);
  return config;
}

Weights stored_alone(const fs::path& folder) {
  Weights weights(folder);
  weights.add(std::make_shared<ShardedSource>(folder), kWeightsPrefix);
  return weights;
}

json adapter_json(const AdapterDescription& adapter) {
  json config = lora_json(adapter.lora);
  config.update({{"layers", adapter.layers},
                 {"fan_in_fan_out", adapter.transposed},
                 {"base", adapter.base},
                 {"base_identity", adapter.base_identity}});
  return config;
}

std::optional<AdapterDescription> described_adapter(const json& model, const std::string& where) {
  if (!model.is_object() || !model.contains(kAdapterKey)) return std::nullopt;
  try {
    const json& config = model.at(kAdapterKey);
    return AdapterDescription{.lora = lora_of_json(config, where),
                              .layers = config.at("layers").get<std::vector<std::string>>(),
                              .transposed = config.at("fan_in_fan_out").get<bool>(),
                              .base = config.at("base").get<std::string>(),
                              .base_identity = config.at("base_identity").get<std::string>()};
  } catch (const json::exception& error) {
    fail(ErrorKind::kCheckpoint, where, ": \"", kAdapterKey,
         "\" must describe adapters, but does not: ", error.what(),
         "; copy the file from the run's newest checkpoint");
  }
}

std::string identity_of(const fs::path& path) {
  std::string text;
  if (format_of(path) == WeightsFormat::kCheckpoint) {
    const Manifest manifest = read_manifest(checkpoint_folder(path));
    for (const FileEntry& file : manifest.files) text += concat(file.bytes, " ", file.xxh3_64, "\n");
    if (const auto adapter = described_adapter(manifest.model, path.string())) text += adapter->base_identity;
  } else {
    const Weights weights = open_weights(path);
    for (const std::string& name : weights.names()) {
      const TensorInfo& info = weights.info(name);
      text += concat(name, " ", util::shape_text(info.shape), " ", util::dtype_name(info.dtype), "\n");
      const int64_t count = std::min(weights.numel(name), kIdentifyingNumbers);
      const at::Tensor values = at::empty({count}, at::TensorOptions(info.dtype));
      weights.read_range_into(name, 0, values);
      text += util::hex_digits(util::xxh3_64(values.const_data_ptr(), values.nbytes()));
    }
  }
  return "xxh3 " + util::hex_digits(util::xxh3_64(text.data(), text.size()));
}

std::string identity_of_random(int64_t seed) { return concat("random weights of the seed ", seed); }

void require_same_scale(const AdapterDescription& found, const nn::LoraOptions& expected,
                        const std::string& where) {
  const std::string differs = difference(found.lora, expected, where);
  if (differs.empty()) return;
  fail(ErrorKind::kCheckpoint, differs,
       "; set it, or start a new run with other adapters and another run.output_dir");
}

void require_same_adapter(const AdapterDescription& found, const AdapterDescription& expected,
                          const std::string& where) {
  require_same_scale(found, expected.lora, where);
  std::set<std::string> theirs(found.layers.begin(), found.layers.end()),
      own(expected.layers.begin(), expected.layers.end());
  if (theirs != own) {
    fail(ErrorKind::kCheckpoint, "lora.targets must match the ", theirs.size(),
         " layers that have adapters in ", where, ", but matches ", own.size(),
         "; restore it, or start a new run with another run.output_dir");
  }
  if (found.base_identity == expected.base_identity) return;
  fail(ErrorKind::kCheckpoint, "the base must be the base of the adapters in ", where, ", ",
       found.base.empty() ? found.base_identity : found.base, " (", found.base_identity, "), but ",
       expected.base.empty() ? "it is " : concat("model.init_from = ", expected.base, " has other weights ("),
       expected.base_identity, expected.base.empty() ? "" : ")",
       "; restore it, or start a new run with another run.output_dir");
}

std::shared_ptr<const TensorSource> merged_source(const fs::path& checkpoint_folder,
                                                  const AdapterDescription& adapter) {
  const std::string where = checkpoint_folder.string();
  if (adapter.base.empty()) {
    fail(ErrorKind::kCheckpoint, "the adapters in ", where, " belong to ", adapter.base_identity,
         ", which are not in a file; train adapters of stored weights (model.init_from)");
  }
  if (!objects::is_remote(adapter.base) && !util::is_there(adapter.base)) {
    fail(ErrorKind::kCheckpoint, "the adapters in ", where, " need the weights of their base at ",
         adapter.base,
         ", but nothing is there; put them back, or export the adapters alone (fsdp-ckpt export --adapter)");
  }
  if (const std::string identity = identity_of(adapter.base); identity != adapter.base_identity) {
    fail(ErrorKind::kCheckpoint, "the weights at ", adapter.base, " must be the base of the adapters in ",
         where, " (", adapter.base_identity, "), but are other weights (", identity, "); restore the base");
  }
  Weights base = open_weights(adapter.base);
  DescribedModel model;
  model.where = (checkpoint_folder / kManifestName).string();
  model.config = read_manifest(checkpoint_folder).model;
  read_model_config(model);
  extend_vocabulary(base, model.options);
  MatchedWeights matched = match_weights(base, model.options);
  matched.misfits.refuse_any(adapter.base, model.where);
  return std::make_shared<MergedSource>(std::move(base), std::move(matched.names),
                                        stored_alone(checkpoint_folder), adapter);
}

}  // namespace fsdp::checkpoint
