#include "checkpoint/inspect.h"

#include <string_view>

#include "checkpoint/folders.h"
#include "checkpoint/manifest.h"
#include "checkpoint/shard_set.h"
#include "checkpoint/tensor_tree.h"
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
  json description{{"path", folder.string()},       {"format", kFormatName},
                   {"step", manifest.step},         {"world_size", manifest.world_size},
                   {"layout", manifest.layout},     {"contents", contents_name(manifest.contents)},
                   {"training", manifest.training}, {"optimizer", json::object()},
                   {"model", manifest.model},       {"files", std::move(files)},
                   {"tensors", json::array()},      {"bytes", 0}};
  for (const auto& [name, entry] : manifest.tensors) {
    add_tensor(description, name, entry.shape, entry.dtype);
    if (!name.starts_with(kOptimizerPrefix)) continue;
    std::string state = name.substr(std::string_view(kOptimizerPrefix).size());
    json& sums = description["optimizer"][state.substr(0, state.find('/'))];
    if (sums.is_null()) sums = {{"tensors", 0}, {"bytes", 0}};
    sums["tensors"] = sums["tensors"].get<int64_t>() + 1;
    sums["bytes"] = sums["bytes"].get<int64_t>() + description["tensors"].back()["bytes"].get<int64_t>();
  }
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
  return format_of(path) == WeightsFormat::kCheckpoint ? describe_checkpoint(checkpoint_folder(path))
                                                       : describe_weights(path);
}

std::string describe_as_text(const json& description) {
  std::string text = concat(description["path"].get<std::string>(), ": ");
  if (description.contains("step")) {
    text += concat("checkpoint of step ", description["step"].get<int64_t>(), ", world size ",
                   description["world_size"].get<int64_t>(), ", layout ",
                   description["layout"].get<std::string>(), ", ",
                   description["contents"] == contents_name(Contents::kWeights) ? "weights only, " : "",
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
  if (description.contains("optimizer")) {
    for (const auto& [state, sums] : description["optimizer"].items()) {
      text += concat("optimizer state ", state, ": ", count_text(sums["tensors"].get<size_t>(), "tensor"),
                     ", ", util::human_bytes(sums["bytes"].get<int64_t>()), "\n");
    }
  }
  return text + tensor_tree(tensors);
}

std::vector<std::string> find_damage(const fs::path& folder, const util::ByteProgress& progress) {
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
  int64_t total_bytes = 0;
  for (const FileEntry& file : manifest.files) total_bytes += file.bytes;
  util::ByteCounter counter(progress, "verifying", total_bytes);
  std::vector<bool> whole;
  for (size_t file = 0; file < manifest.files.size(); ++file) {
    whole.push_back(note([&] { shards.verify(file, [&](int64_t bytes) { counter.add(bytes); }); }));
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
