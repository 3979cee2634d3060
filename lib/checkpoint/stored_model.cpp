#include "checkpoint/stored_model.h"

#include <memory>
#include <utility>

#include "checkpoint/described_model.h"
#include "checkpoint/folders.h"
#include "checkpoint/hugging_face_names.h"
#include "checkpoint/manifest.h"
#include "checkpoint/sharded_source.h"
#include "util/error.h"

namespace fsdp::checkpoint {
namespace fs = std::filesystem;
using util::ErrorKind;
using util::fail;

namespace {

void take_averages(StoredModel& model) {
  Weights averages;
  averages.add(std::make_shared<ShardedSource>(model.folder), kAveragePrefix);
  if (averages.names().empty()) {
    fail(ErrorKind::kCheckpoint, "the checkpoint ", model.folder.string(),
         " holds no averages of weights (no tensor whose name starts with \"", kAveragePrefix,
         "\"); a run keeps them with optimizer.ema_decay");
  }
  model.weights.add(std::make_shared<ShardedSource>(model.folder), kAveragePrefix);
}

void open_checkpoint(StoredModel& model, const fs::path& path, bool ema) {
  model.folder = checkpoint_folder(path);
  model.config = read_manifest(model.folder).model;
  if (model.config.is_null()) {
    fail(ErrorKind::kCheckpoint, (model.folder / kManifestName).string(),
         " does not say what the model is; fsdp-ckpt consolidate writes its weights, which need a "
         "config.json beside them");
  }
  model.weights = open_weights(model.folder);
  if (ema) take_averages(model);
}

void open_safetensors(StoredModel& model, const fs::path& path, bool ema) {
  if (ema) {
    fail(ErrorKind::kUsage, "averages of weights are part of checkpoints; ", path.string(),
         " is none; fsdp-ckpt consolidate --ema writes them as weights");
  }
  model.weights = open_weights(path);
  const fs::path config = config_beside(path);
  std::error_code error;
  if (!fs::exists(config, error)) {
    fail(ErrorKind::kCheckpoint, "expected the model's config at ", config.string(),
         " and found nothing; put the config.json of the weights there");
  }
  model.folder = config.has_parent_path() ? config.parent_path() : ".";
  model.config = read_config_json(config);
}

}  // namespace

StoredModel open_model(const fs::path& path, bool ema) {
  StoredModel model;
  const bool is_checkpoint = format_of(path) == WeightsFormat::kCheckpoint;
  is_checkpoint ? open_checkpoint(model, path, ema) : open_safetensors(model, path, ema);
  model.where = (model.folder / (is_checkpoint ? kManifestName : "config.json")).string();
  read_model_config(model);
  MatchedWeights matched = match_weights(model.weights, model.options);
  matched.misfits.refuse_any(path.string(), model.where);
  model.names = std::move(matched.names);
  return model;
}

}  // namespace fsdp::checkpoint
