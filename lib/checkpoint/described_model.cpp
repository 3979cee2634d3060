#include "checkpoint/described_model.h"

#include "checkpoint/folders.h"
#include "checkpoint/hugging_face_config.h"
#include "checkpoint/json.h"
#include "checkpoint/manifest.h"
#include "checkpoint/weights_format.h"
#include "util/presence.h"

namespace fsdp::checkpoint {
namespace fs = std::filesystem;

std::optional<DescribedModel> described_model(const fs::path& weights) {
  DescribedModel model;
  if (format_of(weights) == WeightsFormat::kCheckpoint) {
    model.folder = checkpoint_folder(weights);
    model.where = (model.folder / kManifestName).string();
    model.config = read_manifest(model.folder).model;
    // Who uses the library may save other modules.
    if (!model.config.is_object() || !model.config.contains("model_type")) return std::nullopt;
  } else {
    const fs::path config = config_beside(weights);
    if (!util::is_there(config)) return std::nullopt;
    model.folder = config.has_parent_path() ? config.parent_path() : ".";
    model.where = config.string();
    model.config = read_config_json(config);
  }
  model.options = options_from_hugging_face(model.config, model.where);
  return model;
}

fs::path config_beside(const fs::path& weights) {
  std::error_code error;
  return (fs::is_directory(weights, error) ? weights : weights.parent_path()) / "config.json";
}

nlohmann::json read_config_json(const fs::path& path) {
  constexpr int64_t kLargestBytes = 10'000'000;
  return read_json(path, kLargestBytes, "config");
}

}  // namespace fsdp::checkpoint
