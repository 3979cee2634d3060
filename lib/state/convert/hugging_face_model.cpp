#include "state/convert/hugging_face_model.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/gguf/reader.h"
#include "base/util/error.h"
#include "base/util/extension.h"
#include "base/util/file.h"
#include "data/tokenizers/gguf_tokenizer.h"
#include "model/families/families.h"
#include "state/description/described_model.h"
#include "state/gguf/forms.h"
#include "state/hugging_face/hugging_face_config.h"
#include "state/manifest/local_weights.h"
#include "state/weights/adapter.h"
#include "state/weights/gguf_source.h"
#include "state/weights/shard_set.h"
#include "state/weights/stored_model.h"

namespace fsdp::checkpoint {
namespace fs = std::filesystem;
using nlohmann::json;

namespace {

fs::path config_path_of(const ImportRequest& request) {
  if (!request.config.empty()) return request.config;
  fs::path path = config_beside(request.source);
  if (!util::is_there(path)) {
    fail(ErrorKind::kCheckpoint, "there is no model config at ", path.string(), "; give it with `config`");
  }
  return path;
}

/// The type of a file's matrices, as the embedding has it; vectors are in f32 in any file.
std::optional<c10::ScalarType> matrix_dtype(const gguf::Reader& file) {
  const auto embedding = file.tensors().find("token_embd.weight");
  if (embedding == file.tensors().end()) return std::nullopt;
  return gguf::value_dtype(embedding->second.type);
}

}  // namespace

ShardedResult import_model(const ImportRequest& given) {
  ImportRequest request = given;
  request.source = local_weights(given.source);
  const WeightsFormat format = format_of(request.source);
  if (format == WeightsFormat::kCheckpoint) {
    fail(ErrorKind::kUsage, request.source.string(),
         " must be safetensors, but is a checkpoint; fsdp-ckpt reshard rewrites it for "
         "another world size");
  }
  const bool is_gguf = format == WeightsFormat::kGguf;
  const auto file = is_gguf ? std::make_shared<const gguf::Reader>(request.source) : nullptr;
  const bool describes_itself = is_gguf && request.config.empty();
  const fs::path config_path = describes_itself ? request.source : config_path_of(request);
  json config = describes_itself ? gguf::described_config(*file) : read_config_json(config_path);
  const nn::ModelOptions options = options_from_hugging_face(config, config_path.string());
  // A model without its head (LlamaModel) becomes the whole model if the head is tied.
  config["architectures"] = {causal_model_class(config["model_type"])};

  Weights source(request.source);
  if (is_gguf) {
    source.add(gguf::open_source(file, config, config_path.string()));
  } else {
    source = open_weights(request.source);
  }
  source.set_saturating(request.saturate);
  const MatchedWeights matched = match_weights(source, options);
  matched.misfits.refuse_any(request.source.string(), config_path.string());
  const auto stored_dtype = is_gguf ? matrix_dtype(*file) : common_dtype(source);
  if (const auto dtype = request.dtype ? request.dtype : stored_dtype) set_dtype(config, *dtype);
  std::vector<ShardedTensor> tensors;
  for (const auto& [name, stored] : matched.names) {
    const TensorInfo& info = source.info(stored);
    tensors.push_back({stored, {kWeightsPrefix + name, info.shape, request.dtype.value_or(info.dtype)}});
  }
  std::optional<data::UnpackedTokenizer> tokenizer;
  if (data::holds_tokenizer(request.source.string())) tokenizer.emplace(request.source);
  const fs::path beside = config_beside(request.source).parent_path();
  return write_sharded({.folder = request.output,
                        .world_size = request.world_size,
                        .contents = Contents::kWeights,
                        .training = nullptr,
                        .model = std::move(config),
                        .model_files = model_files_in(tokenizer ? tokenizer->folder() : beside),
                        .progress = request.progress},
                       source, tensors);
}

ConsolidateResult export_model(const fs::path& checkpoint_folder, const fs::path& output,
                               const ConsolidateOptions& options) {
  const ShardedSource source(checkpoint_folder);
  const std::string manifest = (checkpoint_folder / kManifestName).string();
  if (source.manifest().model.is_null()) {
    fail(ErrorKind::kCheckpoint, manifest,
         " does not describe the model, so it cannot be exported; fsdp-ckpt consolidate "
         "writes its weights alone");
  }
  if (source.manifest().model.contains(kPluginConfig)) {
    fail(ErrorKind::kUsage, "the model must be one that transformers supports, but is ",
         source.manifest().model.value("model_type", json()).dump(), " of a plug-in in ", manifest,
         "; fsdp-ckpt consolidate writes its weights, with a config.json that fsdp-generate --plugin reads");
  }
  auto shapes =
      nn::weight_shapes(options_from_hugging_face(source.manifest().model, concat(manifest, ": \"model\"")));
  WeightMisfits misfits;
  const bool has_adapters = source.manifest().model.contains(kAdapterKey);
  if (options.merge && options.ema) {
    fail(ErrorKind::kUsage, "`merge` cannot be combined with `ema`; leave one of the two out");
  }
  if (has_adapters != options.merge) {
    fail(ErrorKind::kUsage, "the checkpoint ", checkpoint_folder.string(),
         has_adapters ? " must hold all weights, but holds adapters; choose `merge` or `adapter`"
                      : " must hold adapters, but holds all weights of a model; leave out `merge`");
  }
  for (const TensorInfo& info : options.merge
                                    ? weights_of_type(open_weights(checkpoint_folder), options.dtype)
                                    : consolidated_weights(source, options.dtype)) {
    auto expected = shapes.find(info.name);
    if (expected == shapes.end()) {
      misfits.unexpected.push_back(info.name);
      continue;
    }
    compare_shape(info.name, info.shape, expected->second, misfits);
    shapes.erase(expected);
  }
  for (const auto& [name, shape] : shapes) misfits.missing.push_back(name);
  misfits.refuse_any(checkpoint_folder.string(), manifest);
  std::error_code error;
  if (util::extension_of(output) == ".safetensors" && !fs::is_directory(output, error)) {
    fail(ErrorKind::kUsage, "the output must be a folder, but is ", output.string(),
         "; fsdp-ckpt consolidate writes one file");
  }
  ConsolidateOptions chosen = options;
  if (!chosen.dtype) chosen.dtype = dtype_of_config(source.manifest().model);
  return consolidate(checkpoint_folder, output, chosen);
}

}  // namespace fsdp::checkpoint
