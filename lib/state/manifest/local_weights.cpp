#include "state/manifest/local_weights.h"

#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/objects/local_copy.h"
#include "base/objects/object_name.h"
#include "base/objects/object_store.h"
#include "state/manifest/folders.h"

namespace fsdp::checkpoint {
namespace fs = std::filesystem;
namespace {

/// Returns the name of the checkpoint that a folder's objects are, or the newest complete one among them;
/// nothing if there is none.
std::optional<std::string> checkpoint_among(const std::string& folder,
                                            const std::vector<objects::ListedObject>& listed) {
  std::optional<std::string> newest;
  int64_t newest_number = -1;
  for (const objects::ListedObject& object : listed) {
    if (object.name == kManifestName) return folder;
    const size_t slash = object.name.find('/');
    if (slash == std::string::npos || object.name.substr(slash + 1) != kManifestName) continue;
    const std::string name = object.name.substr(0, slash);
    const std::optional<int64_t> step = step_of_folder_name(name);
    if (!step || *step <= newest_number) continue;
    newest_number = *step;
    newest = objects::joined(folder, name);
  }
  return newest;
}

}  // namespace

std::optional<fs::path> remote_checkpoint(const fs::path& path) {
  const std::string name = path.string();
  if (!objects::is_remote(name) || objects::scheme_of(name).starts_with("http")) return std::nullopt;
  static std::mutex mutex;
  static auto* const checkpoints = new std::map<std::string, std::optional<std::string>>;
  const std::lock_guard lock(mutex);
  if (!checkpoints->contains(name)) {
    (*checkpoints)[name] = checkpoint_among(name, objects::object_store(name).list(name));
  }
  return checkpoints->at(name);
}

fs::path local_weights(const fs::path& path) {
  if (const auto checkpoint = remote_checkpoint(path)) return *checkpoint;
  return objects::local_copy(path.string());
}

bool is_remote_checkpoint(const fs::path& path) { return objects::is_remote(path.string()); }

}  // namespace fsdp::checkpoint
