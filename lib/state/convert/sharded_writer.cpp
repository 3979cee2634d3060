#include "state/convert/sharded_writer.h"

#include <algorithm>
#include <utility>

#include "base/util/error.h"
#include "base/util/file.h"
#include "base/util/shape.h"
#include "state/checkpoint/save.h"
#include "state/checkpoint/save_parts.h"
#include "state/manifest/digest.h"
#include "state/manifest/staged_output.h"
#include "state/weights/shard_set.h"

namespace fsdp::checkpoint {
namespace fs = std::filesystem;

namespace {

constexpr int64_t kLargestWorldSize = 100'000;  // limit of the five digits in a shard's name

/// The elements of a tensor that go to one file.
struct ShardPart {
  const ShardedTensor* tensor;
  int64_t begin, end;
};

/// Cuts tensors into equal parts, rounded up, so that the last files may hold less of a tensor, or nothing.
std::vector<ShardPart> parts_of(const std::vector<ShardedTensor>& tensors, int64_t rank, int64_t world_size) {
  std::vector<ShardPart> parts;
  for (const ShardedTensor& tensor : tensors) {
    int64_t numel =
        util::checked_numel(tensor.info.shape, static_cast<int64_t>(c10::elementSize(tensor.info.dtype)));
    int64_t size = (numel + world_size - 1) / world_size;
    int64_t begin = std::min(rank * size, numel), end = std::min(begin + size, numel);
    if (begin < end) parts.push_back({&tensor, begin, end});
  }
  return parts;
}

/// The ranges of parts_of() as entries of a manifest.
std::vector<RangeEntry> ranges_of(const TensorInfo& info, int64_t world_size) {
  const int64_t numel = util::checked_numel(info.shape, static_cast<int64_t>(c10::elementSize(info.dtype)));
  const int64_t size = (numel + world_size - 1) / world_size, whole = size == 0 ? 0 : numel / size;
  std::vector<RangeEntry> ranges;
  if (whole > 0) ranges.push_back({.part = {0, size}, .file = 0});
  if (whole > 1) ranges.front().repeats = {{.count = whole, .files = 1, .columns = size}};
  if (whole * size < numel)
    ranges.push_back({.part = {whole * size, numel}, .file = static_cast<size_t>(whole)});
  return ranges;
}

/// Writes a file. `description`: "" for a file without a description. The returned entry has no name yet.
FileEntry write_shard(const fs::path& path, const Weights& source, const std::vector<ShardPart>& parts,
                      const std::string& description, util::ByteCounter& counter) {
  std::vector<DatasetSpec> datasets;
  if (!description.empty()) datasets.push_back(description_spec(description));
  for (const ShardPart& part : parts) {
    datasets.push_back({part.tensor->info.name, part.tensor->info.dtype, part.end - part.begin});
  }
  {
    ShardFileWriter writer(path, std::move(datasets));
    if (!description.empty()) {
      writer.write(kDescriptionName, 0, static_cast<int64_t>(description.size()), description.data());
    }
    for (const ShardPart& part : parts) {
      const TensorInfo& info = part.tensor->info;
      int64_t at = 0;
      source.stream(part.tensor->source_name, part.begin, part.end, info.dtype, [&](const at::Tensor& slice) {
        writer.write(info.name, at, slice.numel(), slice.const_data_ptr());
        at += slice.numel();
        counter.add(static_cast<int64_t>(slice.nbytes()));
      });
    }
    writer.finish();
  }
  util::start_writing_out(path);
  FileDigest digest = digest_file(path);
  util::sync_path(path);
  return {.name = {}, .bytes = digest.bytes, .xxh3_64 = digest.xxh3_64};
}

}  // namespace

ShardedResult write_sharded(const ShardedWrite& request, const Weights& source,
                            const std::vector<ShardedTensor>& tensors) {
  if (request.world_size < 1 || request.world_size > kLargestWorldSize) {
    fail(ErrorKind::kUsage, "the world size must be from 1 to ", kLargestWorldSize, ", but is ",
         request.world_size);
  }
  FSDP_CHECK(!request.full || request.world_size == 1);
  StagedFolder staged(request.folder, false);
  Manifest manifest{.step = request.step,
                    .world_size = request.world_size,
                    .layout = request.full ? "full" : "flat",
                    .contents = request.contents,
                    .training = request.training,
                    .model = request.model};
  ShardedResult result{.folder = staged.target(), .files = request.world_size};
  for (const ShardedTensor& tensor : tensors) {
    const TensorInfo& info = tensor.info;
    bool is_new = manifest.tensors
                      .emplace(info.name, TensorEntry{.shape = info.shape,
                                                      .dtype = info.dtype,
                                                      .ranges = ranges_of(info, request.world_size)})
                      .second;
    FSDP_CHECK(is_new && is_tensor_name(info.name), info.name);
    result.tensors += 1;
    result.bytes += bytes_of(info);
  }
  create_shard_folders(staged.path(), request.world_size);
  util::ByteCounter counter(request.progress, "writing", result.bytes);
  for (int64_t rank = 0; rank < request.world_size; ++rank) {
    const auto file = static_cast<size_t>(rank);
    const std::string name =
        request.full ? kFullFileName : shard_file_name(static_cast<int>(rank), request.world_size);
    manifest.files.push_back(write_shard(staged.path() / name, source,
                                         parts_of(tensors, rank, request.world_size),
                                         request.full ? "" : describe_file(manifest, file), counter));
    manifest.files.back().name = name;
  }
  copy_model_files(request.model_files, staged.path() / kModelFilesName);
  complete_manifest(manifest, request.folder.string());
  util::write_file_atomically(staged.path() / kManifestName, manifest_text(manifest));
  staged.commit();
  return result;
}

ShardedResult reshard(const fs::path& checkpoint_folder, const fs::path& output, int64_t world_size,
                      const util::ByteProgress& progress) {
  auto shards = std::make_shared<ShardedSource>(checkpoint_folder);
  shards->verify_all(progress);
  std::vector<ShardedTensor> tensors;
  for (const TensorInfo& info : shards->infos()) {
    // Of no use to other ranks than those that made them.
    if (!info.name.starts_with(kErrorPrefix)) tensors.push_back({.source_name = info.name, .info = info});
  }
  const Manifest& manifest = shards->manifest();
  ShardedWrite request{.folder = output,
                       .world_size = world_size,
                       .step = manifest.step,
                       .contents = manifest.contents,
                       .training = manifest.training,
                       .model = manifest.model,
                       .model_files = model_files_in(kept_model_files(checkpoint_folder)),
                       .progress = progress};
  Weights source;
  source.add(shards);
  return write_sharded(request, source, tensors);
}

}  // namespace fsdp::checkpoint
