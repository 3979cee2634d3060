#include "run/train/checkpoint_uploads.h"

#include <utility>

#include "base/objects/object_name.h"
#include "base/objects/object_store.h"
#include "base/util/error.h"
#include "state/checkpoint/save.h"
#include "state/description/described_model.h"
#include "state/manifest/manifest.h"
#include "state/manifest/remote_checkpoints.h"

namespace fsdp::train {
namespace fs = std::filesystem;
namespace {

constexpr const char* kPurpose = "upload of a checkpoint";

/// Files of a run's folder that belong to its checkpoints.
constexpr const char* kRunFiles[] = {"config.toml", "environment.json", "metrics.jsonl"};

/// Sends a file, and compares the size that the store has afterwards.
void send(const fs::path& file, const std::string& name) {
  objects::ObjectStore& store = objects::object_store(name);
  store.upload(name, file);
  const auto sent = store.find(name);
  const auto bytes = static_cast<int64_t>(fs::file_size(file));
  if (!sent || sent->size_bytes != bytes) {
    fail(ErrorKind::kIo, "the object ", name, " must have the ", bytes, " bytes of ", file.string(), ", but ",
         sent ? concat("has ", sent->size_bytes) : "does not exist",
         " after it was written; check the store");
  }
}

}  // namespace

CheckpointUploads::CheckpointUploads(std::string to, fs::path output, comm::Communicator& communicator,
                                     UploadHooks hooks)
    : to_(std::move(to)), output_(std::move(output)), communicator_(communicator), hooks_(std::move(hooks)) {}

void CheckpointUploads::add(const fs::path& folder, int64_t step) {
  Upload upload{.folder = folder, .step = step};
  if (!current_) return begin(std::move(upload));
  if (next_ && communicator_.rank() == 0) {
    hooks_.say(concat("the checkpoint of step ", next_->step, " is not sent to ", to_,
                      ", because a newer one was complete before its turn"),
               /*warning=*/true);
  }
  next_ = std::move(upload);
}

void CheckpointUploads::begin(Upload upload) {
  current_ = std::move(upload);
  task_ = std::make_unique<checkpoint::BackgroundTask>(communicator_, kPurpose,
                                                       [this, upload = *current_] { send_files(upload); });
}

void CheckpointUploads::poll() {
  if (task_ && task_->done_everywhere()) go_on();
}

void CheckpointUploads::finish() {
  while (task_) go_on();
}

/// Waits for the part under way, and begins the next one.
void CheckpointUploads::go_on() {
  const std::unique_ptr<checkpoint::BackgroundTask> part = std::move(task_);
  try {
    part->join();
    if (!current_->files_are_sent) {
      current_->files_are_sent = true;
      task_ = std::make_unique<checkpoint::BackgroundTask>(communicator_, kPurpose,
                                                           [this, upload = *current_] { complete(upload); });
      return;
    }
    failure_.clear();
    if (communicator_.rank() == 0) {
      hooks_.say(concat("sent ", current_->folder.string(), " to ", remote(current_->folder)),
                 /*warning=*/false);
      for (const std::string& removed : removed_) hooks_.say("removed " + removed, /*warning=*/false);
    }
  } catch (const comm::AgreedError& error) {
    failure_ =
        concat("the checkpoint of step ", current_->step, " could not be sent to ", to_, ": ", error.what());
    if (communicator_.rank() == 0) hooks_.say(failure_ + "; training continues", /*warning=*/true);
  }
  current_.reset();
  if (next_) begin(*std::exchange(next_, std::nullopt));
}

std::string CheckpointUploads::remote(const fs::path& path) const {
  return objects::joined(to_, path.lexically_relative(output_).string());
}

/// Sends the file of this rank, and on rank 0 those of a checkpoint that belong to no rank.
void CheckpointUploads::send_files(const Upload& upload) const {
  const std::string own = checkpoint::shard_file_name(communicator_.rank(), communicator_.world_size());
  for (const checkpoint::FileEntry& file : checkpoint::read_manifest(upload.folder).files) {
    const bool is_full = file.name == checkpoint::kFullFileName;
    if (file.name == own || (is_full && communicator_.rank() == 0))
      send(upload.folder / file.name, remote(upload.folder / file.name));
  }
}

void CheckpointUploads::complete(const Upload& upload) {
  removed_.clear();
  if (communicator_.rank() != 0) return;
  std::error_code error;
  for (const auto& [name, path] : checkpoint::model_files_in(output_ / checkpoint::kModelFilesName)) {
    send(path, remote(output_ / checkpoint::kModelFilesName / name));
  }
  for (const char* name : kRunFiles) {
    if (fs::exists(output_ / name, error))
      objects::object_store(to_).upload(remote(output_ / name), output_ / name);
  }
  send(upload.folder / checkpoint::kManifestName, remote(upload.folder / checkpoint::kManifestName));
  removed_ = checkpoint::prune_remote(to_, hooks_.retention());
}

std::vector<int64_t> CheckpointUploads::steps_in_use() const {
  std::vector<int64_t> steps;
  for (const auto& upload : {current_, next_}) {
    if (upload) steps.push_back(upload->step);
  }
  return steps;
}

void CheckpointUploads::require_last() const {
  if (!failure_.empty()) fail(ErrorKind::kIo, failure_, "; the checkpoint is in ", output_.string());
}

}  // namespace fsdp::train
