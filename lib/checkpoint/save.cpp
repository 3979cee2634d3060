#include "checkpoint/save.h"

#include <cstdio>
#include <utility>

#include "checkpoint/save_parts.h"
#include "checkpoint/shard_file.h"

namespace fsdp::checkpoint {
namespace fs = std::filesystem;
using nlohmann::json;

namespace {

constexpr const char* kPurpose = "checkpoint";

/// Writes this rank's file and returns its description for rank 0: a FileEntry and "tensors".
json write_rank(const SaveRequest& request, const fs::path& folder, int rank,
                const std::vector<shard::TensorSlice>& slices) {
  std::map<std::string, RankTensor> tensors = group_by_tensor(slices);
  std::vector<DatasetSpec> datasets;
  for (const auto& [name, tensor] : tensors) {
    int64_t numel = 0;
    for (const shard::TensorSlice* slice : tensor.slices) numel += slice->numel();
    if (numel > 0) datasets.push_back({name, tensor.any->data.scalar_type(), numel});
  }
  json report = write_named(folder / shard_file_name(rank), [&](const fs::path& path) {
    ShardFileWriter file(path, datasets);
    for (const auto& [name, tensor] : tensors) {
      int64_t offset = 0;
      for (const shard::TensorSlice* slice : tensor.slices) {
        file.write(name, offset, slice->numel(), slice->data.const_data_ptr());
        offset += slice->numel();
      }
    }
    file.finish();
    if (request.in_the_middle) request.in_the_middle();
  });
  report["tensors"] = describe(tensors);
  return report;
}

SavedCheckpoint write_manifest(const SaveRequest& request, const fs::path& folder,
                               const std::vector<std::string>& reports) {
  Manifest manifest{.step = request.step,
                    .world_size = static_cast<int64_t>(reports.size()),
                    .layout = request.layout,
                    .training = request.training,
                    .model = request.model};
  for (const std::string& text : reports) {
    json report = json::parse(text);
    auto file = report.get<FileEntry>();
    require_visible(folder, file);
    add_described(manifest, report["tensors"], manifest.files.size(), file.name);
    manifest.files.push_back(std::move(file));
  }
  return commit(request, std::move(manifest), folder);
}

}  // namespace

std::string shard_file_name(int rank) {
  char name[40];
  std::snprintf(name, sizeof(name), "rank-%05d.h5", rank);
  return name;
}

SaveUnderWay::SaveUnderWay(SaveRequest request, std::vector<shard::TensorSlice> slices,
                           comm::Communicator& communicator)
    : request_(std::move(request)),
      folder_(request_.root / step_folder_name(request_.step)),
      slices_(std::move(slices)),
      communicator_(communicator) {
  begin(Part::kFolder, [this] {
    if (communicator_.rank() == 0) create_step_folder(request_.root, folder_);
  });
}

SaveUnderWay::~SaveUnderWay() = default;

bool SaveUnderWay::advance() {
  if (part_ != Part::kNone && task_->done_everywhere()) begin_next();
  return part_ == Part::kNone;
}

SavedCheckpoint SaveUnderWay::finish() {
  while (part_ != Part::kNone) begin_next();
  return saved_;
}

void SaveUnderWay::begin(Part part, std::function<void()> body) {
  part_ = part;
  task_ = std::make_unique<BackgroundTask>(communicator_, kPurpose, std::move(body));
}

void SaveUnderWay::begin_next() {
  or_remove_folder(communicator_, folder_, [&] {
    task_->join();
    if (part_ == Part::kFolder) {
      begin(Part::kFiles,
            [this, rank = communicator_.rank()] { report_ = write_rank(request_, folder_, rank, slices_); });
    } else if (part_ == Part::kFiles) {
      auto reports = comm::all_gather_text(communicator_, report_.dump(), {.unit = kPurpose});
      begin(Part::kManifest, [this, rank = communicator_.rank(), reports = std::move(reports)] {
        saved_.folder = folder_;
        if (rank == 0) saved_ = write_manifest(request_, folder_, reports);
      });
    } else {
      part_ = Part::kNone;
    }
  });
}

SavedCheckpoint save_sharded(const SaveRequest& request, const std::vector<shard::TensorSlice>& slices,
                             comm::Communicator& communicator) {
  return SaveUnderWay(request, slices, communicator).finish();
}

}  // namespace fsdp::checkpoint
