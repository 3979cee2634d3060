#include "checkpoint/inspect.h"

#include <algorithm>
#include <set>

#include "checkpoint/folders.h"
#include "checkpoint/manifest.h"
#include "checkpoint/shard_set.h"
#include "checkpoint/weights.h"
#include "util/dtype.h"
#include "util/error.h"
#include "util/text.h"

namespace fsdp::checkpoint {
namespace fs = std::filesystem;
using nlohmann::json;
using util::concat;

namespace {

/// Appends a tensor and adds its bytes to the sum.
void add_tensor(json& description, const std::string& name, const std::vector<int64_t>& shape,
                c10::ScalarType dtype) {
  auto itemsize_bytes = static_cast<int64_t>(c10::elementSize(dtype));
  int64_t bytes = checked_numel(shape, itemsize_bytes) * itemsize_bytes;
  description["tensors"].push_back(
      {{"name", name}, {"shape", shape}, {"dtype", util::dtype_name(dtype)}, {"bytes", bytes}});
  description["bytes"] = description["bytes"].get<int64_t>() + bytes;
}

json describe_checkpoint(const fs::path& folder) {
  Manifest manifest = read_manifest(folder);
  json files = json::array();
  for (const FileEntry& file : manifest.files) {
    files.push_back({{"name", file.name}, {"bytes", file.bytes}, {"xxh3_64", file.xxh3_64}});
  }
  json description{{"path", folder.string()},   {"format", kFormatName},
                   {"step", manifest.step},     {"world_size", manifest.world_size},
                   {"layout", manifest.layout}, {"training", manifest.training},
                   {"model", manifest.model},   {"files", std::move(files)},
                   {"tensors", json::array()},  {"bytes", 0}};
  for (const auto& [name, entry] : manifest.tensors) add_tensor(description, name, entry.shape, entry.dtype);
  return description;
}

json describe_weights(const fs::path& path) {
  Weights weights = open_weights(path);
  json description{
      {"path", path.string()}, {"format", "safetensors"}, {"tensors", json::array()}, {"bytes", 0}};
  for (const std::string& name : weights.names()) {
    add_tensor(description, name, weights.shape(name), weights.dtype(name));
  }
  return description;
}

std::string count_text(size_t count, const char* noun) {
  return concat(util::with_commas(static_cast<int64_t>(count)), " ", noun, count == 1 ? "" : "s");
}

}  // namespace

json describe(const fs::path& path) {
  std::error_code error;
  bool has_weights = !fs::is_directory(path, error) || fs::exists(path / "model.safetensors", error) ||
                     fs::exists(path / "model.safetensors.index.json", error);
  return has_weights ? describe_weights(path) : describe_checkpoint(checkpoint_folder(path));
}

std::string describe_as_text(const json& description) {
  std::string text = concat(description["path"].get<std::string>(), ": ");
  if (description.contains("step")) {
    text += concat("sharded checkpoint of step ", description["step"].get<int64_t>(), ", world size ",
                   description["world_size"].get<int64_t>(), ", layout ",
                   description["layout"].get<std::string>(), ", ",
                   count_text(description["files"].size(), "file"), ", ");
  } else {
    text += "safetensors, ";
  }
  const json& tensors = description["tensors"];
  text += concat(count_text(tensors.size(), "tensor"), ", ",
                 util::human_bytes(description["bytes"].get<int64_t>()), "\n");
  for (const char* key : {"training", "model"}) {
    if (description.contains(key) && !description[key].is_null()) {
      text += concat(key, ": ", description[key].dump(), "\n");
    }
  }
  size_t widest = 0;
  for (const json& tensor : tensors) widest = std::max(widest, tensor["name"].get<std::string>().size());
  for (const json& tensor : tensors) {
    auto name = tensor["name"].get<std::string>();
    text += concat(name, std::string(widest - name.size() + 2, ' '), tensor["dtype"].get<std::string>(), " ",
                   shape_text(tensor["shape"].get<std::vector<int64_t>>()), "  ",
                   util::human_bytes(tensor["bytes"].get<int64_t>()), "\n");
  }
  return text;
}

std::vector<std::string> find_damage(const fs::path& folder) {
  std::vector<std::string> damage;
  auto note = [&](const auto& body) {
    try {
      body();
      return true;
    } catch (const util::Error& error) {
      damage.push_back(error.what());
      return false;
    }
  };
  Manifest manifest;
  if (!note([&] { manifest = read_manifest(folder); })) return damage;
  ShardSet shards(folder, manifest);
  std::vector<bool> whole;
  for (size_t file = 0; file < manifest.files.size(); ++file) {
    whole.push_back(note([&] { shards.verify(file); }));
  }
  // File by file, so that each is opened once.
  std::vector<std::vector<const std::pair<const std::string, TensorEntry>*>> held(manifest.files.size());
  for (const auto& tensor : manifest.tensors) {
    for (const auto& [file, numel] : tensor.second.numel_in_file) held[file].push_back(&tensor);
  }
  for (size_t file = 0; file < held.size(); ++file) {
    if (!whole[file]) continue;
    for (const auto* tensor : held[file]) note([&] { shards.check(file, tensor->first, tensor->second); });
  }
  return damage;
}

}  // namespace fsdp::checkpoint
