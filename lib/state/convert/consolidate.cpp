#include "state/convert/consolidate.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>
#include <memory>

#include "base/util/error.h"
#include "base/util/extension.h"
#include "base/util/file.h"
#include "base/util/text.h"
#include "state/convert/sharded_writer.h"
#include "state/description/described_model.h"
#include "state/hugging_face/hugging_face_config.h"
#include "state/manifest/staged_output.h"
#include "state/weights/adapter.h"
#include "state/weights/safetensors.h"
#include "state/weights/shard_set.h"

namespace fsdp::checkpoint {
namespace fs = std::filesystem;

namespace {

std::string part_name(size_t part, size_t parts) {
  return util::printed("model-%05zu-of-%05zu.safetensors", part, parts);
}

}  // namespace

HuggingFaceFolder plan_hugging_face_folder(const std::vector<TensorInfo>& infos, int64_t max_file_bytes) {
  std::vector<std::vector<TensorInfo>> parts(1);
  int64_t total_bytes = 0, part_bytes = 0;
  for (const TensorInfo& info : infos) {
    int64_t bytes = bytes_of(info);
    if (max_file_bytes > 0 && !parts.back().empty() && part_bytes + bytes > max_file_bytes) {
      parts.emplace_back();
      part_bytes = 0;
    }
    parts.back().push_back(info);
    part_bytes += bytes;
    total_bytes += bytes;
  }
  HuggingFaceFolder folder;
  if (parts.size() == 1) {
    folder.files.emplace_back(kSingleFileName, std::move(parts.front()));
    return folder;
  }
  nlohmann::json map = nlohmann::json::object();
  for (size_t i = 0; i < parts.size(); ++i) {
    std::string name = part_name(i + 1, parts.size());
    for (const TensorInfo& info : parts[i]) map[info.name] = name;
    folder.files.emplace_back(name, std::move(parts[i]));
  }
  folder.index.emplace();
  (*folder.index)["metadata"] = {{"total_size", total_bytes}};
  (*folder.index)["weight_map"] = map;
  return folder;
}

bool is_weights_file(const std::string& name) {
  if (name == kIndexFileName || name == kSingleFileName) return true;
  size_t part = 0, parts = 0;
  return std::sscanf(name.c_str(), "model-%zu-of-%zu.safetensors", &part, &parts) == 2 &&
         name == part_name(part, parts);
}

std::string config_text(nlohmann::json config, const std::vector<TensorInfo>& infos) {
  bool one_type = !infos.empty() && std::all_of(infos.begin(), infos.end(), [&](const TensorInfo& info) {
    return info.dtype == infos.front().dtype;
  });
  if (config.is_object() && one_type) set_dtype(config, infos.front().dtype);
  return config.dump(2) + "\n";
}

int64_t parse_size(const std::string& text) {
  constexpr std::array<std::pair<std::string_view, int64_t>, 7> kUnits = {{{"", 1},
                                                                           {"KB", 1'000},
                                                                           {"MB", 1'000'000},
                                                                           {"GB", 1'000'000'000},
                                                                           {"KiB", int64_t{1} << 10},
                                                                           {"MiB", int64_t{1} << 20},
                                                                           {"GiB", int64_t{1} << 30}}};
  int64_t value = 0, bytes = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  std::string_view unit(end, static_cast<size_t>(text.data() + text.size() - end));
  for (const auto& [name, factor] : kUnits) {
    if (error == std::errc() && unit == name && value > 0 && !__builtin_mul_overflow(value, factor, &bytes)) {
      return bytes;
    }
  }
  fail(ErrorKind::kUsage, "expected a size such as 5GB or 500MiB; found \"", text, "\"");
}

namespace {

/// A checkpoint that is being written out, after all its hashes were compared.
struct ConsolidationSource {
  std::shared_ptr<const ShardedSource> shards;
  Weights state;  ///< tensors under their full names
  std::vector<TensorInfo> infos;
  util::ByteCounter counter;
  bool ema = false;
  bool merged = false;  ///< whether `state` has the weights of a model under the model's names

  /// Name in `state` of a weight, or of its average if `ema`. Frozen weights have no average.
  std::string stored_name(const std::string& weight) const {
    if (merged) return weight;
    std::string average = kAveragePrefix + weight;
    return ema && state.contains(average) ? average : kWeightsPrefix + weight;
  }
};

void write_safetensors_file(ConsolidationSource& source, const fs::path& path, std::vector<TensorInfo> infos,
                            const ConsolidateOptions& options) {
  SafetensorsWriter writer(path, std::move(infos));
  for (const TensorInfo& info : writer.infos()) {
    writer.append(info, source.state, source.stored_name(info.name), source.counter);
  }
  // Another process may have created the file in the meantime.
  if (!options.overwrite) refuse_existing(path);
  writer.finish();
}

void write_folder(ConsolidationSource& source, const fs::path& output, const ConsolidateOptions& options,
                  ConsolidateResult& result) {
  StagedFolder staged(output, options.overwrite);
  HuggingFaceFolder folder = plan_hugging_face_folder(source.infos, options.max_file_bytes);
  for (auto& [name, infos] : folder.files) {
    write_safetensors_file(source, staged.path() / name, infos, options);
  }
  nlohmann::json model = source.shards->manifest().model;
  if (source.merged) model.erase(kAdapterKey);
  if (!model.is_null()) {
    util::write_file_atomically(staged.path() / "config.json", config_text(model, source.infos));
    result.config = staged.target() / "config.json";
  }
  const ModelFiles small = model_files_in(kept_model_files(source.shards->path()));
  copy_model_files(small, staged.path());
  for (const auto& [name, path] : small) result.model_files.push_back(name);
  if (folder.index) util::write_file_atomically(staged.path() / kIndexFileName, folder.index->dump(2) + "\n");
  staged.commit(is_weights_file);
  result.output = staged.target() / (folder.index ? kIndexFileName : folder.files.front().first);
  result.files = static_cast<int64_t>(folder.files.size());
}

void write_full(const ConsolidationSource& source, const fs::path& output, const ConsolidateOptions& options,
                ConsolidateResult& result) {
  std::vector<ShardedTensor> tensors;
  for (const TensorInfo& info : source.infos) {
    TensorInfo stored = info;
    stored.name = kWeightsPrefix + info.name;
    tensors.push_back({.source_name = source.stored_name(info.name), .info = std::move(stored)});
  }
  if (options.optimizer) {
    for (TensorInfo& info : source.shards->infos()) {
      if (info.name.starts_with(kWeightsPrefix) || info.name.starts_with(kErrorPrefix)) continue;
      tensors.push_back({info.name, std::move(info)});
    }
  }
  const Manifest& manifest = source.shards->manifest();
  const bool whole_state = options.optimizer && manifest.contents == Contents::kState;
  ShardedResult written =
      write_sharded({.folder = output,
                     .world_size = 1,
                     .full = true,
                     .step = manifest.step,
                     .contents = whole_state ? Contents::kState : Contents::kWeights,
                     .training = whole_state ? manifest.training : nlohmann::json(),
                     .model = manifest.model,
                     .model_files = model_files_in(kept_model_files(source.shards->path())),
                     .progress = options.progress},
                    source.state, tensors);
  result.output = written.folder;
  result.tensors = written.tensors;
  result.bytes = written.bytes;
}

enum class OutputKind { kSafetensorsFile, kFolder, kFull };

OutputKind output_kind(const fs::path& output, const ConsolidateOptions& options) {
  std::error_code error;
  const bool is_folder = fs::is_directory(output, error);
  if (!is_folder && (util::extension_of(output) == ".h5" || util::extension_of(output) == ".hdf5")) {
    fail(ErrorKind::kUsage, "the output must be a folder or a .safetensors file, but is ", output.string(),
         "; for HDF5 give a folder, which receives full.h5 and manifest.json, and choose "
         "`full`");
  }
  OutputKind kind = !is_folder && util::extension_of(output) == ".safetensors" ? OutputKind::kSafetensorsFile
                                                                               : OutputKind::kFolder;
  if (options.full) {
    if (kind == OutputKind::kSafetensorsFile) {
      fail(ErrorKind::kUsage, "`full` writes a folder, but ", output.string(),
           " is the name of a safetensors file; choose another name");
    }
    if (options.overwrite) {
      fail(ErrorKind::kUsage,
           "`overwrite` cannot be combined with `full`, because checkpoints are never "
           "overwritten; choose another output or remove ",
           output.string());
    }
    kind = OutputKind::kFull;
  }
  if (options.optimizer && kind != OutputKind::kFull) {
    fail(ErrorKind::kUsage, "`optimizer` requires `full`; safetensors files contain weights only");
  }
  if (options.optimizer && options.ema) {
    fail(ErrorKind::kUsage,
         "`optimizer` cannot be combined with `ema`, because its state belongs to the "
         "weights, not to their averages; leave out one of the two");
  }
  if (options.max_file_bytes > 0 && kind != OutputKind::kFolder) {
    fail(ErrorKind::kUsage, "`max_file_bytes` requires a folder of safetensors as the output, but ",
         output.string(), " is one file; give a folder and leave out `full`");
  }
  return kind;
}

}  // namespace

std::vector<TensorInfo> consolidated_weights(const ShardedSource& source,
                                             std::optional<c10::ScalarType> dtype) {
  const std::string_view prefix = kWeightsPrefix;
  std::vector<TensorInfo> infos;
  for (TensorInfo& info : source.infos()) {
    if (!info.name.starts_with(prefix)) continue;
    bool casts = dtype && c10::isFloatingType(info.dtype);
    infos.push_back({info.name.substr(prefix.size()), std::move(info.shape), casts ? *dtype : info.dtype});
  }
  return infos;
}

std::vector<TensorInfo> weights_of_type(const Weights& weights, std::optional<c10::ScalarType> dtype) {
  std::vector<TensorInfo> infos;
  for (const std::string& name : weights.names()) {
    infos.push_back(weights.info(name));
    infos.back().name = name;
    if (dtype && c10::isFloatingType(infos.back().dtype)) infos.back().dtype = *dtype;
  }
  return infos;
}

ConsolidateResult consolidate(const fs::path& checkpoint_folder, const fs::path& output,
                              const ConsolidateOptions& options) {
  FSDP_CHECK(!options.dtype || c10::isFloatingType(*options.dtype));
  FSDP_CHECK(options.max_file_bytes >= 0);
  const OutputKind kind = output_kind(output, options);
  auto shards = std::make_shared<ShardedSource>(checkpoint_folder);
  std::vector<TensorInfo> infos = consolidated_weights(*shards, options.dtype);
  Weights merged;
  if (options.merge) {
    merged = open_weights(checkpoint_folder);
    infos = weights_of_type(merged, options.dtype);
  }
  if (infos.empty()) {
    fail(ErrorKind::kCheckpoint, "the checkpoint ", checkpoint_folder.string(),
         " contains no weights (no tensor whose name starts with \"", kWeightsPrefix, "\")");
  }
  if (options.ema) require_averages(*shards);
  // Checked before the shards are hashed, which may take an hour.
  if (!options.overwrite && !is_empty_folder(output)) {
    refuse_existing(output, kind == OutputKind::kFull ? "choose another output or remove it" : kForceRemedy);
  }
  util::make_writable_folder(output.has_parent_path() ? output.parent_path() : ".");
  shards->verify_all(options.progress);
  const int64_t bytes = bytes_of(infos);
  ConsolidationSource source{
      shards, {}, std::move(infos), util::ByteCounter(options.progress, "writing", bytes), options.ema};
  if (options.merge) {
    source.state = std::move(merged);
    source.merged = true;
  } else {
    source.state.add(shards);
  }
  source.state.set_saturating(options.saturate);
  ConsolidateResult result{.output = output,
                           .config = std::nullopt,
                           .tensors = static_cast<int64_t>(source.infos.size()),
                           .bytes = bytes};
  switch (kind) {
    case OutputKind::kFolder:
      write_folder(source, output, options, result);
      break;
    case OutputKind::kFull:
      write_full(source, output, options, result);
      break;
    case OutputKind::kSafetensorsFile:
      write_safetensors_file(source, output, source.infos, options);
      break;
  }
  return result;
}

}  // namespace fsdp::checkpoint
