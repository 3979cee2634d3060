#include "state/convert/hugging_face_model.h"

#include <string>
#include <utility>
#include <vector>

#include "base/util/error.h"
#include "base/util/extension.h"
#include "base/util/file.h"
#include "base/util/text.h"
#include "model/families/families.h"
#include "state/hugging_face/described_model.h"
#include "state/hugging_face/hugging_face_config.h"
#include "state/weights/adapter.h"
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

}  // namespace

ShardedResult import_model(const ImportRequest& request) {
  if (format_of(request.source) == WeightsFormat::kCheckpoint) {
    fail(ErrorKind::kUsage, request.source.string(),
         " must be safetensors, but is a checkpoint; fsdp-ckpt reshard rewrites it for "
         "another world size");
  }
  const fs::path config_path = config_path_of(request);
  json config = read_config_json(config_path);
  const nn::ModelOptions options = options_from_hugging_face(config, config_path.string());
  // A model without its head (LlamaModel) becomes the whole model if the head is tied.
  config["architectures"] = {causal_model_class(config["model_type"])};

  Weights source = open_weights(request.source);
  source.set_saturating(request.saturate);
  const MatchedWeights matched = match_weights(source, options);
  matched.misfits.refuse_any(request.source.string(), config_path.string());
  if (const auto dtype = request.dtype ? request.dtype : common_dtype(source)) set_dtype(config, *dtype);
  std::vector<ShardedTensor> tensors;
  for (const auto& [name, stored] : matched.names) {
    const TensorInfo& info = source.info(stored);
    tensors.push_back({stored, {kWeightsPrefix + name, info.shape, request.dtype.value_or(info.dtype)}});
  }
  return write_sharded({.folder = request.output,
                        .world_size = request.world_size,
                        .contents = Contents::kWeights,
                        .training = nullptr,
                        .model = std::move(config),
                        .model_files = model_files_in(config_beside(request.source).parent_path()),
                        .progress = request.progress},
                       source, tensors);
}

ConsolidateResult export_model(const ModelExportRequest& request) {
  const ShardedSource source(request.checkpoint_folder);
  const std::string manifest = (request.checkpoint_folder / kManifestName).string();
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
  if (request.merge && request.ema) {
    fail(ErrorKind::kUsage, "`merge` cannot be combined with `ema`; leave one of the two out");
  }
  if (has_adapters != request.merge) {
    fail(ErrorKind::kUsage, "the checkpoint ", request.checkpoint_folder.string(),
         has_adapters ? " must hold all weights, but holds adapters; choose `merge` or `adapter`"
                      : " must hold adapters, but holds all weights of a model; leave out `merge`");
  }
  for (const TensorInfo& info : request.merge
                                    ? weights_of_type(open_weights(request.checkpoint_folder), request.dtype)
                                    : consolidated_weights(source, request.dtype)) {
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
  if (util::extension_of(request.output) == ".safetensors" && !fs::is_directory(request.output, error)) {
    fail(ErrorKind::kUsage, "the output must be a folder, but is ", request.output.string(),
         "; fsdp-ckpt consolidate writes one file");
  }
  return consolidate(request.checkpoint_folder, request.output,
                     {.dtype = request.dtype ? request.dtype : dtype_of_config(source.manifest().model),
                      .merge = request.merge,
                      .ema = request.ema,
                      .saturate = request.saturate,
                      .overwrite = request.overwrite,
                      .max_file_bytes = request.max_file_bytes,
                      .progress = request.progress});
}

}  // namespace fsdp::checkpoint
