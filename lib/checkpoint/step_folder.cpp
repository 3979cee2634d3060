#include "checkpoint/step_folder.h"

#include "checkpoint/damage.h"
#include "checkpoint/folders.h"
#include "checkpoint/raw_file.h"
#include "util/error.h"
#include "util/file.h"
#include "util/log.h"

namespace fsdp::checkpoint {
namespace fs = std::filesystem;
using util::concat;
using util::ErrorKind;
using util::fail;

void create_step_folder(const fs::path& root, const fs::path& folder) {
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
      const fs::path aside = set_aside(folder);
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

fs::path temporary_name(const fs::path& path) {
  return path.parent_path() / concat(".", path.filename().string(), ".tmp");
}

FileEntry write_named(const fs::path& path, const std::function<void(const fs::path&)>& write) {
  const fs::path temporary = temporary_name(path);
  try {
    write(temporary);
    util::start_writing_out(temporary);  // the disk works while the hash is computed
    FileDigest digest = digest_file(temporary);
    util::sync_path(temporary);
    util::rename_and_sync(temporary, path);
    return {.name = path.filename().string(), .bytes = digest.bytes, .xxh3_64 = digest.xxh3_64};
  } catch (...) {
    std::error_code ignored;
    fs::remove(temporary, ignored);
    throw;
  }
}

void require_visible(const fs::path& folder, const FileEntry& file) {
  std::error_code error;
  auto bytes = fs::file_size(folder / file.name, error);
  if (!error && static_cast<int64_t>(bytes) == file.bytes) return;
  fail(ErrorKind::kIo, "rank 0 does not see the file ", (folder / file.name).string(), " of ", file.bytes,
       " bytes that another rank wrote; run.output_dir must be on storage that all nodes share");
}

SavedCheckpoint commit(const SaveRequest& request, Manifest manifest, const fs::path& folder) {
  complete_manifest(manifest, folder.string());
  util::write_file_atomically(folder / kManifestName, manifest_text(manifest));
  SavedCheckpoint saved{.folder = folder};
  try {
    saved.removed = prune(request.root, request.retention);
  } catch (const util::Error& error) {
    saved.removal_failure = error.what();
  }
  return saved;
}

void or_remove_folder(comm::Communicator& communicator, const fs::path& folder,
                      const std::function<void()>& part) {
  try {
    part();
  } catch (const util::Error& error) {
    bool all_here = error.kind() != ErrorKind::kPeerLost && error.kind() != ErrorKind::kTimeout;
    std::error_code ignored;
    if (communicator.rank() == 0 && all_here && !fs::exists(folder / kManifestName, ignored)) {
      fs::remove_all(folder, ignored);
    }
    throw;
  }
}

}  // namespace fsdp::checkpoint
