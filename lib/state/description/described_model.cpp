#include "state/description/described_model.h"

#include <system_error>

#include "base/gguf/reader.h"
#include "base/objects/local_copy.h"
#include "base/objects/object_name.h"
#include "base/objects/object_store.h"
#include "base/util/error.h"
#include "base/util/extension.h"
#include "base/util/file.h"
#include "base/util/log.h"
#include "state/gguf/forms.h"
#include "state/hugging_face/hugging_face_config.h"
#include "state/manifest/digest.h"
#include "state/manifest/folders.h"
#include "state/manifest/local_weights.h"
#include "state/manifest/manifest.h"

namespace fsdp::checkpoint {
namespace fs = std::filesystem;

namespace {

constexpr const char* kPickleRemedy =
    "such files can run code when they are read, so they are refused; if you trust the "
    "model, save it as safetensors: python3 -c 'import sys, transformers as t; "
    "t.AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=\"auto\")"
    ".save_pretrained(sys.argv[2], safe_serialization=True)' FROM TO, and copy the tokenizer's files along";

bool is_pickle(const fs::path& file) {
  const std::string suffix = util::extension_of(file);
  return suffix == ".bin" || suffix == ".pt" || suffix == ".pth" || suffix == ".ckpt";
}

/// The name of PyTorch's pickled file in a folder; empty when there is none.
std::string pickle_in(const fs::path& folder) {
  std::error_code error;
  for (const char* name :
       {"pytorch_model.bin", "pytorch_model.bin.index.json", "consolidated.00.pth", "model.pt"}) {
    if (fs::exists(folder / name, error)) return name;
  }
  return "";
}

}  // namespace

bool is_dcp_folder(const fs::path& path) {
  std::error_code error;
  return fs::exists(local_weights(path) / kDcpMetadataName, error);
}

WeightsFormat format_of(const fs::path& given) {
  const fs::path path = local_weights(given);
  if (is_remote_checkpoint(path)) return WeightsFormat::kCheckpoint;
  std::error_code error;
  if (!util::is_there(path)) {
    fail(ErrorKind::kCheckpoint, "there are no weights at ", path.string(),
         "; give a Hugging Face folder, a safetensors or GGUF file, or a checkpoint",
         util::hub_remedy(path.string()));
  }
  if (!fs::is_directory(path, error)) {
    if (is_pickle(path)) {
      fail(ErrorKind::kCheckpoint, path.string(),
           " must be a safetensors file, but is a pickled PyTorch file; ", kPickleRemedy);
    }
    if (util::extension_of(path) == ".gguf" || gguf::is_gguf(path)) return WeightsFormat::kGguf;
    return WeightsFormat::kSafetensors;
  }
  if (fs::exists(path / kManifestName, error)) return WeightsFormat::kCheckpoint;
  if (fs::exists(path / kSingleFileName, error) || fs::exists(path / kIndexFileName, error)) {
    return WeightsFormat::kSafetensors;
  }
  const FoundCheckpoints found = find_checkpoints(path);
  if (!found.complete.empty() || !found.torn.empty()) return WeightsFormat::kCheckpoint;
  if (is_dcp_folder(path)) {
    fail(
        ErrorKind::kCheckpoint, path.string(),
        " is a checkpoint of torch.distributed.checkpoint; fsdp-ckpt import makes one of this toolkit of it");
  }
  const std::string pickle = pickle_in(path);
  if (!pickle.empty()) {
    fail(ErrorKind::kCheckpoint, path.string(), " must contain ", kSingleFileName, " or ", kIndexFileName,
         ", but has ", pickle, ", which PyTorch pickled; ", kPickleRemedy);
  }
  fail(ErrorKind::kCheckpoint, "the folder ", path.string(), " has neither ", kSingleFileName, " nor ",
       kIndexFileName, " nor ", kManifestName,
       "; give a safetensors or GGUF file, a Hugging Face folder, or a checkpoint");
}

namespace {

/// Returns the config.json beside weights in a store, whose weights are not copied for it; nothing for paths,
/// checkpoints and GGUF files.
std::optional<fs::path> remote_config(const fs::path& weights) {
  const std::string name = weights.string();
  if (!objects::is_remote(name) || util::extension_of(weights) == ".gguf" || remote_checkpoint(weights))
    return {};
  const bool is_file = util::extension_of(weights) == ".safetensors";
  return objects::copy_if_there(objects::joined(is_file ? objects::folder_of(name) : name, "config.json"));
}

void describe(const fs::path& config, DescribedModel& model) {
  model.folder = config.has_parent_path() ? config.parent_path() : ".";
  model.where = config.string();
  model.config = read_config_json(config);
}

}  // namespace

std::optional<DescribedModel> described_model(const fs::path& given) {
  DescribedModel model;
  if (const auto config = remote_config(given)) {
    describe(*config, model);
    read_model_config(model);
    return model;
  }
  const fs::path weights = local_weights(given);
  const WeightsFormat format = format_of(weights);
  if (format == WeightsFormat::kCheckpoint) {
    model.folder = checkpoint_folder(weights);
    model.where = (model.folder / kManifestName).string();
    model.config = read_manifest(model.folder).model;
    // Programs that use the library may save other modules.
    if (!model.config.is_object() || !model.config.contains("model_type")) return std::nullopt;
  } else if (format == WeightsFormat::kGguf) {
    model.folder = weights.has_parent_path() ? weights.parent_path() : ".";
    model.where = weights.string();
    model.config = gguf::described_config(gguf::Reader(weights));
  } else {
    const fs::path config = config_beside(weights);
    if (!util::is_there(config)) return std::nullopt;
    describe(config, model);
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
    fail(ErrorKind::kCheckpoint, model.where, ": \"model_type\" and \"", kPluginConfig,
         "\" must be strings and \"", kPluginNames,
         "\" a list of strings, but they are not; copy the file from the run's newest "
         "checkpoint");
  }
}

fs::path config_beside(const fs::path& given) {
  const fs::path weights = local_weights(given);
  std::error_code error;
  return (fs::is_directory(weights, error) ? weights : weights.parent_path()) / "config.json";
}

nlohmann::json read_config_json(const fs::path& path) {
  constexpr int64_t kLargestBytes = 10'000'000;
  return read_json(path, kLargestBytes, "config");
}

namespace {

/// Larger files are not a tokenizer, whatever their name.
constexpr uintmax_t kLargestModelFileBytes = 500'000'000;

}  // namespace

bool is_tokenizer_file(const std::string& name) {
  static const std::vector<std::string> patterns = {
      "tokenizer*.json",   "tokenizer*.model*", "special_tokens_map.json",
      "added_tokens.json", "vocab.json",        "vocab.txt",
      "vocab.bpe",         "merges.txt",        "encoder.json",
      "spiece.model",      "tekken.json",       "chat_template*"};
  return util::matches_any(name, patterns);
}

ModelFiles model_files_in(const fs::path& folder) {
  // The hub's cache consists of links. A checkpoint's own copies are files: a link among them was put there
  // to have another file copied.
  const bool takes_links = folder.filename() != kModelFilesName;
  ModelFiles files;
  std::error_code error;
  for (fs::directory_iterator at(folder, error); !error && at != fs::directory_iterator();
       at.increment(error)) {
    const std::string name = at->path().filename().string();
    if (!is_tokenizer_file(name) && name != "generation_config.json") continue;
    std::error_code ignored;
    if (!takes_links && at->is_symlink(ignored)) {
      util::log_warning(concat(at->path().string(), " is left out, because it is a symbolic link"));
      continue;
    }
    if (!fs::is_regular_file(at->path(), ignored) || at->file_size(ignored) > kLargestModelFileBytes)
      continue;
    files.emplace(name, at->path());
  }
  return files;
}

fs::path kept_model_files(const fs::path& checkpoint_folder) {
  if (is_remote_checkpoint(checkpoint_folder)) {
    const std::string folder = checkpoint_folder.string();
    for (const std::string& around : {folder, objects::folder_of(folder)}) {
      const std::string files = objects::joined(around, kModelFilesName);
      if (!objects::object_store(files).list(files).empty()) return objects::local_copy(files);
    }
    return {};
  }
  fs::path folder = fs::absolute(checkpoint_folder).lexically_normal();
  if (!folder.has_filename()) folder = folder.parent_path();  // of a path that ends in a slash
  std::error_code error;
  // A link such as RUN/best lies in the run's folder, too.
  for (const fs::path& around : {folder, folder.parent_path()}) {
    if (fs::is_directory(fs::symlink_status(around / kModelFilesName, error)))
      return around / kModelFilesName;
  }
  return {};
}

void copy_model_files(const ModelFiles& files, const fs::path& folder) {
  if (files.empty()) return;
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) fail(ErrorKind::kIo, "cannot create the folder ", folder.string(), ": ", error.message());
  for (const auto& [name, path] : files) {
    util::write_file_atomically(folder / name, util::read_file(path));
  }
}

}  // namespace fsdp::checkpoint
