#include "checkpoint/consolidate.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "checkpoint/hugging_face_folder.h"
#include "checkpoint/model_files.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/sharded_source.h"
#include "checkpoint/sharded_writer.h"
#include "checkpoint/staged_output.h"
#include "checkpoint/weights.h"
#include "util/error.h"
#include "util/file.h"

namespace fsdp::checkpoint {
namespace fs = std::filesystem;
using util::ErrorKind;
using util::fail;

namespace {

constexpr const char* kForceRemedy = "choose another output or replace it with `overwrite`";
constexpr const char* kOtherRemedy = "choose another output or remove it";

int64_t bytes_of(const std::vector<TensorInfo>& infos) {
  int64_t bytes = 0;
  for (const TensorInfo& info : infos) {
    auto itemsize_bytes = static_cast<int64_t>(c10::elementSize(info.dtype));
    bytes += checked_numel(info.shape, itemsize_bytes) * itemsize_bytes;
  }
  return bytes;
}

/// A checkpoint that is being written out, with all its hashes compared.
struct Source {
  std::shared_ptr<const ShardedSource> shards;
  Weights state;  ///< under the full names
  std::vector<TensorInfo> infos;
  util::ByteCounter counter;
  bool ema = false;

  /// Where a weight comes from: frozen ones have no average and are what they always were.
  std::string stored_name(const std::string& weight) const {
    std::string average = kAveragePrefix + weight;
    return ema && state.contains(average) ? average : kWeightsPrefix + weight;
  }

  template <typename Append>
  void copy(const std::string& stored_name, const TensorInfo& info, const Append& append) {
    state.stream(stored_name, 0, state.numel(stored_name), info.dtype, [&](const at::Tensor& slice) {
      auto bytes = static_cast<int64_t>(slice.nbytes());
      append(slice.const_data_ptr(), bytes);
      counter.add(bytes);
    });
  }
};

void write_safetensors_file(Source& source, const fs::path& path, std::vector<TensorInfo> infos,
                            const ConsolidateOptions& options) {
  SafetensorsWriter writer(path, std::move(infos));
  for (const TensorInfo& info : writer.infos()) {
    source.copy(source.stored_name(info.name), info,
                [&](const void* data, int64_t bytes) { writer.append(data, bytes); });
  }
  // Another process may have put something there in the meantime.
  if (!options.overwrite) refuse_existing(path, kForceRemedy);
  writer.finish();
}

/// A folder as Hugging Face lays it out.
void write_folder(Source& source, const fs::path& output, const ConsolidateOptions& options,
                  ConsolidateResult& result) {
  StagedFolder staged(output, options.overwrite);
  HuggingFaceFolder folder = plan_hugging_face_folder(source.infos, options.max_file_bytes);
  for (auto& [name, infos] : folder.files) {
    write_safetensors_file(source, staged.path() / name, infos, options);
  }
  const nlohmann::json& model = source.shards->manifest().model;
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

/// A checkpoint of one file.
void write_full(const Source& source, const fs::path& output, const ConsolidateOptions& options,
                ConsolidateResult& result) {
  std::vector<ShardedTensor> tensors;
  for (const TensorInfo& info : source.infos) {
    TensorInfo stored = info;
    stored.name = kWeightsPrefix + info.name;
    tensors.push_back({.source_name = source.stored_name(info.name), .info = std::move(stored)});
  }
  if (options.optimizer) {
    for (TensorInfo& info : source.shards->infos()) {
      if (!info.name.starts_with(kWeightsPrefix)) tensors.push_back({info.name, std::move(info)});
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

bool has_averages(const ShardedSource& source) {
  const std::vector<TensorInfo> infos = source.infos();
  return std::any_of(infos.begin(), infos.end(),
                     [](const TensorInfo& info) { return info.name.starts_with(kAveragePrefix); });
}

enum class OutputKind { kSafetensorsFile, kFolder, kFull };

OutputKind output_kind(const fs::path& output, const ConsolidateOptions& options) {
  std::error_code error;
  const bool is_folder = fs::is_directory(output, error);
  if (!is_folder && (output.extension() == ".h5" || output.extension() == ".hdf5")) {
    fail(ErrorKind::kUsage, "expected the name of a folder or of a .safetensors file and found ",
         output.string(),
         "; for HDF5 name a folder, which gets full.h5 and manifest.json, and choose `full`");
  }
  OutputKind kind =
      !is_folder && output.extension() == ".safetensors" ? OutputKind::kSafetensorsFile : OutputKind::kFolder;
  if (options.full) {
    if (kind == OutputKind::kSafetensorsFile) {
      fail(ErrorKind::kUsage, "`full` makes a folder, and ", output.string(),
           " has the name of a safetensors file; choose another name");
    }
    if (options.overwrite) {
      fail(ErrorKind::kUsage,
           "`overwrite` does not go with `full`, because checkpoints are never overwritten; choose another "
           "output or remove ",
           output.string());
    }
    kind = OutputKind::kFull;
  }
  if (options.optimizer && kind != OutputKind::kFull) {
    fail(ErrorKind::kUsage, "`optimizer` goes only with `full`; safetensors files hold weights only");
  }
  if (options.optimizer && options.ema) {
    fail(
        ErrorKind::kUsage,
        "`optimizer` does not go with `ema`, because its state belongs to the weights, not to their averages; "
        "leave out one of the two");
  }
  if (options.max_file_bytes > 0 && kind != OutputKind::kFolder) {
    fail(ErrorKind::kUsage, "`max_file_bytes` goes only with a folder of safetensors as the output, and ",
         output.string(), " is one file; name a folder and leave out `full`");
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

ConsolidateResult consolidate(const fs::path& checkpoint_folder, const fs::path& output,
                              const ConsolidateOptions& options) {
  FSDP_CHECK(!options.dtype || c10::isFloatingType(*options.dtype));
  FSDP_CHECK(options.max_file_bytes >= 0);
  const OutputKind kind = output_kind(output, options);
  auto shards = std::make_shared<ShardedSource>(checkpoint_folder);
  std::vector<TensorInfo> infos = consolidated_weights(*shards, options.dtype);
  if (infos.empty()) {
    fail(ErrorKind::kCheckpoint, "the checkpoint ", checkpoint_folder.string(),
         " holds no weights (no tensor whose name starts with \"", kWeightsPrefix, "\")");
  }
  if (options.ema && !has_averages(*shards)) {
    fail(ErrorKind::kCheckpoint, "the checkpoint ", checkpoint_folder.string(),
         " holds no averages of weights (no tensor whose name starts with \"", kAveragePrefix,
         "\"); a run keeps them with optimizer.ema_decay");
  }
  // Before an hour of hashing, not after it.
  if (!options.overwrite && !is_empty_folder(output)) {
    refuse_existing(output, kind == OutputKind::kFull ? kOtherRemedy : kForceRemedy);
  }
  util::make_writable_folder(output.has_parent_path() ? output.parent_path() : ".");
  shards->verify_all(options.progress);
  const int64_t bytes = bytes_of(infos);
  Source source{
      shards, {}, std::move(infos), util::ByteCounter(options.progress, "writing", bytes), options.ema};
  source.state.add(shards);
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
