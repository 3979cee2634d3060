#include "checkpoint/consolidate.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <vector>

#include "checkpoint/manifest.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/shard_set.h"
#include "util/dtype.h"
#include "util/error.h"
#include "util/file.h"

namespace fsdp::checkpoint {
namespace fs = std::filesystem;
using util::ErrorKind;
using util::fail;

namespace {

constexpr const char* kWeightsPrefix = "model/";
constexpr int64_t kSliceBytes = int64_t{16} << 20;

struct Outputs {
  fs::path weights;
  std::optional<fs::path> config;
};

Outputs choose_outputs(const fs::path& output, bool knows_config) {
  std::error_code error;
  if (output.extension() == ".safetensors" && !fs::is_directory(output, error)) return {output, std::nullopt};
  Outputs outputs{output / "model.safetensors", std::nullopt};
  if (knows_config) outputs.config = output / "config.json";
  return outputs;
}

void refuse_existing(const fs::path& path) {
  std::error_code error;
  if (fs::exists(fs::symlink_status(path, error))) {
    fail(ErrorKind::kCheckpoint, path.string(),
         " is there already; choose another output or overwrite it with --force");
  }
}

bool holds(const fs::path& path, const std::string& text) {
  std::error_code error;
  return fs::is_regular_file(path, error) && fs::file_size(path, error) == text.size() &&
         util::read_file(path) == text;
}

std::vector<TensorInfo> weights_of(const Manifest& manifest, std::optional<c10::ScalarType> cast) {
  std::vector<TensorInfo> infos;
  for (const auto& [name, entry] : manifest.tensors) {
    if (!name.starts_with(kWeightsPrefix)) continue;
    bool casts = cast && c10::isFloatingType(entry.dtype);
    infos.push_back(
        {name.substr(std::string_view(kWeightsPrefix).size()), entry.shape, casts ? *cast : entry.dtype});
  }
  return infos;
}

/// Reads one tensor slice by slice and appends it, cast when the types differ.
void copy_tensor(ShardSet& shards, const TensorEntry& entry, const TensorInfo& info,
                 SafetensorsWriter& writer) {
  const int64_t step = kSliceBytes / static_cast<int64_t>(c10::elementSize(entry.dtype));
  at::Tensor slice = at::empty({std::min(step, entry.numel)}, at::TensorOptions().dtype(entry.dtype));
  for (int64_t begin = 0; begin < entry.numel; begin += step) {
    int64_t end = std::min(begin + step, entry.numel);
    for (const ShardRead& read : shards.plan(kWeightsPrefix + info.name, begin, end, slice.data_ptr())) {
      shards.read(read);
    }
    at::Tensor out = slice.narrow(0, 0, end - begin).to(info.dtype);
    writer.append(out.const_data_ptr(), out.numel() * out.element_size());
  }
}

/// The config as Hugging Face reads it, with the type of the weights when they share one.
std::string config_text(nlohmann::json config, const std::vector<TensorInfo>& infos) {
  bool one_type = std::all_of(infos.begin(), infos.end(),
                              [&](const TensorInfo& info) { return info.dtype == infos.front().dtype; });
  if (config.is_object() && one_type) config["torch_dtype"] = util::dtype_name(infos.front().dtype);
  return config.dump(2) + "\n";
}

}  // namespace

ConsolidateResult consolidate(const fs::path& checkpoint_folder, const fs::path& output,
                              const ConsolidateOptions& options) {
  FSDP_CHECK(!options.dtype || c10::isFloatingType(*options.dtype));
  const Manifest manifest = read_manifest(checkpoint_folder);
  std::vector<TensorInfo> infos = weights_of(manifest, options.dtype);
  if (infos.empty()) {
    fail(ErrorKind::kCheckpoint, "the checkpoint ", checkpoint_folder.string(),
         " holds no weights (no tensor ", "whose name starts with \"", kWeightsPrefix, "\")");
  }
  const Outputs outputs = choose_outputs(output, !manifest.model.is_null());
  const std::string config = config_text(manifest.model, infos);
  if (!options.overwrite) {
    refuse_existing(outputs.weights);
    // The same config is what a consolidation that was killed leaves, or one into another file of this
    // folder.
    if (outputs.config && !holds(*outputs.config, config)) refuse_existing(*outputs.config);
  }
  ShardSet shards(checkpoint_folder, manifest);
  for (size_t file = 0; file < manifest.files.size(); ++file) shards.verify(file);

  util::make_writable_folder(outputs.weights.has_parent_path() ? outputs.weights.parent_path() : ".");
  ConsolidateResult result{.weights = outputs.weights, .config = outputs.config};
  SafetensorsWriter writer(outputs.weights, std::move(infos));
  for (const TensorInfo& info : writer.infos()) {
    const TensorEntry& entry = manifest.tensors.at(kWeightsPrefix + info.name);
    copy_tensor(shards, entry, info, writer);
    result.tensors += 1;
    result.bytes += entry.numel * static_cast<int64_t>(c10::elementSize(info.dtype));
  }
  // Another process may have put something there in the meantime.
  if (!options.overwrite) refuse_existing(outputs.weights);
  if (outputs.config) util::write_file_atomically(*outputs.config, config);
  writer.finish();
  return result;
}

}  // namespace fsdp::checkpoint
