#include "checkpoint/described_model.h"

#include "checkpoint/folders.h"
#include "checkpoint/hugging_face_config.h"
#include "checkpoint/json.h"
#include "checkpoint/manifest.h"
#include "checkpoint/weights_format.h"
#include "util/error.h"
#include "util/file.h"

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
  read_model_config(model);
  return model;
}

void read_model_config(DescribedModel& model) {
  const nlohmann::json& config = model.config;
  if (!config.is_object() || !config.contains(kPluginConfig)) {
    model.options = options_from_hugging_face(config, model.where);
    return;
  }
  try {
    model.options.architecture = config.at("model_type").get<std::string>();
    model.plugin_config = config.at(kPluginConfig).get<std::string>();
    model.plugins = config.value(kPluginNames, std::vector<std::string>());
  } catch (const nlohmann::json::exception&) {
    util::fail(util::ErrorKind::kCheckpoint, model.where, ": expected texts for \"model_type\" and \"",
               kPluginConfig, "\" and a list of them for \"", kPluginNames,
               "\"; found other types; take it from the run's newest checkpoint");
  }
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
