#include "state/checkpoint/save.h"

#include <utility>

#include "base/util/text.h"
#include "state/checkpoint/save_parts.h"
#include "state/weights/shard_file.h"

namespace fsdp::checkpoint {
namespace fs = std::filesystem;
namespace {

constexpr const char* kPurpose = "checkpoint";

/// Writes this rank's file and returns its report.
std::string write_rank(const SaveRequest& request, const fs::path& folder, const comm::Communicator& ranks,
                       const std::vector<shard::TensorSlice>& slices) {
  const std::map<std::string, RankTensor> tensors = group_by_tensor(slices);
  const auto rank = static_cast<size_t>(ranks.rank());
  Manifest own{.step = request.step,
               .world_size = ranks.world_size(),
               .layout = request.layout,
               .tensors = entries_of(tensors, rank)};
  const std::string description = describe_file(own, rank);
  std::vector<DatasetSpec> datasets = {description_spec(description)};
  for (const auto& [name, tensor] : tensors) {
    int64_t numel = 0;
    for (const shard::TensorSlice* slice : tensor.slices) numel += slice->numel();
    if (numel > 0) datasets.push_back({name, tensor.any->dtype(), numel});
  }
  const FileEntry written =
      write_named(folder / shard_file_name(ranks.rank(), own.world_size), [&](const fs::path& path) {
        ShardFileWriter file(path, datasets);
        file.write(kDescriptionName, 0, datasets.front().numel, description.data());
        for (const auto& [name, tensor] : tensors) {
          int64_t offset = 0;
          for (const shard::TensorSlice* slice : tensor.slices) {
            for_each_piece(*slice, 0, slice->numel(), [&](int64_t first, int64_t count, const void* numbers) {
              file.write(name, offset + first, count, numbers);
            });
            offset += slice->numel();
          }
        }
        file.finish();
        if (request.in_the_middle) request.in_the_middle();
      });
  // Rank 0 also names the tensors of which no rank holds an element.
  if (rank > 0) std::erase_if(own.tensors, [](const auto& item) { return item.second.ranges.empty(); });
  return report_of(written, own.tensors);
}

SavedCheckpoint write_manifest(const SaveRequest& request, const fs::path& folder, int64_t world_size,
                               const std::string& report) {
  Manifest manifest{.step = request.step,
                    .world_size = world_size,
                    .layout = request.layout,
                    .training = request.training,
                    .model = request.model};
  add_report(manifest, report);
  for (const FileEntry& file : manifest.files) require_visible(folder, file);
  return commit(request, std::move(manifest), folder);
}

}  // namespace

std::string shard_file_name(int rank, int64_t world_size) {
  constexpr int kMostInAFolder = 1024;
  const std::string name = util::printed("rank-%05d.h5", rank);
  if (world_size <= kMostInAFolder) return name;
  return util::printed("ranks-%05d/", rank / kMostInAFolder * kMostInAFolder) + name;
}

SaveUnderWay::SaveUnderWay(SaveRequest request, std::vector<shard::TensorSlice> slices,
                           comm::Communicator& communicator)
    : request_(std::move(request)),
      folder_(request_.root / step_folder_name(request_.step)),
      slices_(std::move(slices)),
      communicator_(communicator) {
  communicator_.check();
  begin(SavePart::kFolder, [this] {
    if (communicator_.rank() == 0) create_step_folder(request_, folder_, communicator_.world_size());
  });
}

SaveUnderWay::~SaveUnderWay() = default;

bool SaveUnderWay::advance() {
  if (part_ != SavePart::kNone && task_->done_everywhere()) begin_next();
  return part_ == SavePart::kNone;
}

SavedCheckpoint SaveUnderWay::finish() {
  while (part_ != SavePart::kNone) begin_next();
  return saved_;
}

void SaveUnderWay::begin(SavePart part, std::function<void()> body) {
  part_ = part;
  task_ = std::make_unique<BackgroundTask>(communicator_, kPurpose, std::move(body));
}

void SaveUnderWay::begin_next() {
  // If the folder could not be created, it may belong to an older save and stays.
  if (part_ == SavePart::kFolder) task_->join();
  or_remove_folder(communicator_, folder_, [&] {
    if (part_ != SavePart::kFolder) task_->join();
    if (part_ == SavePart::kFolder) {
      if (request_.complete_slices) request_.complete_slices();
      begin(SavePart::kFiles, [this] { report_ = write_rank(request_, folder_, communicator_, slices_); });
    } else if (part_ == SavePart::kFiles) {
      if (!request_.tree) request_.tree = std::make_shared<comm::RankTree>(communicator_);
      const int world = communicator_.world_size();
      report_ = request_.tree->reduce(std::move(report_),
                                      [&](const auto& reports, int first, int last) {
                                        return combined_reports(reports, first, last, world);
                                      },
                                      {.unit = kPurpose});
      begin(SavePart::kManifest, [this, world, rank = communicator_.rank()] {
        saved_.folder = folder_;
        if (rank == 0) saved_ = write_manifest(request_, folder_, world, report_);
      });
    } else {
      part_ = SavePart::kNone;
    }
  });
}

SavedCheckpoint save_sharded(const SaveRequest& request, const std::vector<shard::TensorSlice>& slices,
                             comm::Communicator& communicator) {
  return SaveUnderWay(request, slices, communicator).finish();
}

}  // namespace fsdp::checkpoint
