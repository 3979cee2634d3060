#include "checkpoint/damage.h"

#include <fcntl.h>
#include <unistd.h>

#include "checkpoint/manifest.h"
#include "checkpoint/shard_set.h"
#include "util/file.h"

namespace fsdp::checkpoint {
namespace fs = std::filesystem;

namespace {

/// So that the next reading is one of the disk. Of use for synced files alone, and a request only.
void forget_cached(const fs::path& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return;
  ::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
  ::close(fd);
}

}  // namespace

std::string damage_in(const fs::path& folder, const std::function<bool(const std::string& name)>& takes) {
  try {
    forget_cached(folder / kManifestName);
    const Manifest manifest = read_manifest(folder);
    ShardSet shards(folder, manifest);
    for (size_t file = 0; file < manifest.files.size(); ++file) {
      if (!takes(manifest.files[file].name)) continue;
      forget_cached(folder / manifest.files[file].name);
      shards.verify(file);
      for (const auto& [name, entry] : manifest.tensors) {
        if (entry.numel_in_file.contains(file)) shards.check(file, name, entry);
      }
    }
  } catch (const DamageError& error) {
    return error.what();
  }
  return "";
}

fs::path set_aside(const fs::path& folder) {
  std::error_code error;
  fs::path aside;
  for (int i = 1; i == 1 || fs::exists(fs::symlink_status(aside, error)); ++i) {
    aside = util::concat(folder.string(), ".damaged-", i);
  }
  util::rename_and_sync(folder, aside);
  return aside;
}

}  // namespace fsdp::checkpoint
