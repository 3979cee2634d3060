#include "checkpoint/save.h"

#include <algorithm>
#include <cstdio>
#include <map>

#include "checkpoint/folders.h"
#include "checkpoint/manifest.h"
#include "checkpoint/raw_file.h"
#include "checkpoint/shard_file.h"
#include "util/dtype.h"
#include "util/error.h"
#include "util/file.h"
#include "util/log.h"

namespace fsdp::checkpoint {
namespace fs = std::filesystem;
using nlohmann::json;
using util::concat;
using util::ErrorKind;
using util::fail;

namespace {

std::string shard_file_name(int rank) {
  char name[40];
  std::snprintf(name, sizeof(name), "rank-%05d.h5", rank);
  return name;
}

/// Makes room for the step's folder and creates it. Rank 0 only.
void prepare_folder(const fs::path& root, const fs::path& folder) {
  util::make_writable_folder(root);
  std::error_code error;
  if (fs::exists(fs::symlink_status(folder, error))) {
    if (incompleteness(folder).empty()) {
      fail(
          ErrorKind::kCheckpoint, folder.string(),
          " is a complete checkpoint already and is not overwritten; move it away, resume from it, or choose "
          "another run.output_dir");
    }
    if (fs::exists(folder / kManifestName, error)) {
      // Finished once and damaged since, or of a newer format: a person may want to look at it.
      fs::path aside;
      for (int i = 1; i == 1 || fs::exists(aside, error); ++i)
        aside = concat(folder.string(), ".damaged-", i);
      util::rename_and_sync(folder, aside);
      util::log_warning(concat("renamed the damaged checkpoint ", folder.string(), " to ", aside.string()));
    } else {
      fs::remove_all(folder, error);
      if (error)
        fail(ErrorKind::kIo, "cannot remove the unfinished ", folder.string(), ": ", error.message());
      util::log_info(concat("removed the unfinished checkpoint ", folder.string()));
    }
  }
  fs::create_directory(folder, error);
  if (error) fail(ErrorKind::kIo, "cannot make the folder ", folder.string(), ": ", error.message());
  util::sync_path(root);
}

/// This rank's slices by tensor, ascending, without the empty ones; all slices are checked.
struct RankTensor {
  const TensorSlice* any = nullptr;  ///< for shape and dtype
  std::vector<const TensorSlice*> slices;
};

std::map<std::string, RankTensor> group_by_tensor(const std::vector<TensorSlice>& slices) {
  std::map<std::string, RankTensor> tensors;
  for (const TensorSlice& slice : slices) {
    FSDP_CHECK(is_tensor_name(slice.name), "\"", slice.name, "\"");
    FSDP_CHECK(slice.data.defined() && slice.data.device().is_cpu() && slice.data.is_contiguous(),
               slice.name);
    FSDP_CHECK(slice.data.dim() == 1 && slice.data.numel() == slice.end - slice.begin, slice.name);
    int64_t numel = checked_numel(slice.shape, slice.data.element_size());
    FSDP_CHECK(slice.begin >= 0 && slice.begin <= slice.end && slice.end <= numel, slice.name);
    RankTensor& tensor = tensors[slice.name];
    if (!tensor.any) tensor.any = &slice;
    FSDP_CHECK(tensor.any->shape == slice.shape && tensor.any->data.scalar_type() == slice.data.scalar_type(),
               slice.name);
    if (slice.begin < slice.end) tensor.slices.push_back(&slice);
  }
  for (auto& [name, tensor] : tensors) {
    std::sort(tensor.slices.begin(), tensor.slices.end(),
              [](const TensorSlice* a, const TensorSlice* b) { return a->begin < b->begin; });
  }
  return tensors;
}

/// Writes this rank's file and returns what rank 0 needs to know of it.
json write_rank(const fs::path& folder, int rank, const std::vector<TensorSlice>& slices) {
  std::map<std::string, RankTensor> tensors = group_by_tensor(slices);
  const fs::path path = folder / shard_file_name(rank);
  const fs::path temporary = folder / concat(".", shard_file_name(rank), ".tmp");
  std::vector<ShardDataset> datasets;
  json described = json::object();
  for (const auto& [name, tensor] : tensors) {
    ShardDataset dataset{name, {}};
    json ranges = json::array();
    for (const TensorSlice* slice : tensor.slices) {
      dataset.parts.push_back(slice->data);
      ranges.push_back({slice->begin, slice->end});
    }
    described[name] = {{"shape", tensor.any->shape},
                       {"dtype", util::dtype_name(tensor.any->data.scalar_type())},
                       {"ranges", std::move(ranges)}};
    if (!dataset.parts.empty()) datasets.push_back(std::move(dataset));
  }
  try {
    write_shard_file(temporary, datasets);
    FileDigest digest = digest_file(temporary);
    util::rename_and_sync(temporary, path);
    return {{"name", path.filename().string()},
            {"bytes", digest.bytes},
            {"xxh3_64", digest.xxh3_64},
            {"tensors", std::move(described)}};
  } catch (...) {
    std::error_code ignored;
    fs::remove(temporary, ignored);
    throw;
  }
}

/// Adds one rank's report to the manifest.
void add_rank(Manifest& manifest, const json& report, const fs::path& folder) {
  FileEntry file{.name = report["name"].get<std::string>(),
                 .bytes = report["bytes"].get<int64_t>(),
                 .xxh3_64 = report["xxh3_64"].get<std::string>()};
  std::error_code error;
  auto bytes = fs::file_size(folder / file.name, error);
  if (error || static_cast<int64_t>(bytes) != file.bytes) {
    fail(ErrorKind::kIo, "rank 0 does not see the file ", (folder / file.name).string(), " of ", file.bytes,
         " bytes that another rank wrote; run.output_dir must be on storage that all nodes share");
  }
  for (const auto& [name, value] : report["tensors"].items()) {
    auto shape = value["shape"].get<std::vector<int64_t>>();
    auto dtype = util::dtype_from_name(value["dtype"].get<std::string>());
    auto [at, is_new] = manifest.tensors.try_emplace(name, TensorEntry{.shape = shape, .dtype = dtype});
    TensorEntry& entry = at->second;
    if (!is_new && (entry.shape != shape || entry.dtype != dtype)) {
      fail(ErrorKind::kCheckpoint, "the ranks disagree about the tensor ", name, ": ", file.name, " has ",
           util::dtype_name(dtype), " ", shape_text(shape), ", others have ", util::dtype_name(entry.dtype),
           " ", shape_text(entry.shape));
    }
    for (const json& range : value["ranges"]) {
      entry.ranges.push_back(
          {.begin = range[0].get<int64_t>(), .end = range[1].get<int64_t>(), .file = manifest.files.size()});
    }
  }
  manifest.files.push_back(std::move(file));
}

void write_manifest(const SaveRequest& request, const fs::path& folder,
                    const std::vector<std::string>& reports) {
  Manifest manifest{.step = request.step,
                    .world_size = static_cast<int64_t>(reports.size()),
                    .layout = request.layout,
                    .training = request.training,
                    .model = request.model};
  for (const std::string& report : reports) add_rank(manifest, json::parse(report), folder);
  complete_manifest(manifest, folder.string());
  util::write_file_atomically(folder / kManifestName, manifest_text(manifest));
}

}  // namespace

void save_sharded(const SaveRequest& request, const std::vector<TensorSlice>& slices,
                  comm::Communicator& communicator) {
  const fs::path folder = request.root / step_folder_name(request.step);
  const bool first = communicator.rank() == 0;
  const comm::CallSite site{.unit = "checkpoint"};
  comm::agree(communicator, site.unit, [&] {
    if (first) prepare_folder(request.root, folder);
  });
  try {
    json report;
    comm::agree(communicator, site.unit, [&] { report = write_rank(folder, communicator.rank(), slices); });
    std::vector<std::string> reports = comm::all_gather_text(communicator, report.dump(), site);
    comm::agree(communicator, site.unit, [&] {
      if (first) write_manifest(request, folder, reports);
    });
  } catch (const util::Error& error) {
    // All ranks are here, unless one is lost and may still be writing; its leftovers go at the next save.
    bool all_here = error.kind() != ErrorKind::kPeerLost && error.kind() != ErrorKind::kTimeout;
    std::error_code ignored;
    if (first && all_here && !fs::exists(folder / kManifestName, ignored)) fs::remove_all(folder, ignored);
    throw;
  }
}

}  // namespace fsdp::checkpoint
