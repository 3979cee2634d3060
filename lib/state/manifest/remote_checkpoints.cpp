#include "state/manifest/remote_checkpoints.h"

#include <algorithm>
#include <map>

#include "base/objects/object_name.h"
#include "base/objects/object_store.h"
#include "base/util/error.h"
#include "state/manifest/manifest.h"
#include "state/manifest/run_identity.h"

namespace fsdp::checkpoint {
namespace {

struct RemoteStep {
  std::vector<std::string> objects;  ///< relative to the listed folder
  bool has_manifest = false;
};

std::map<int64_t, RemoteStep> listed_steps(const std::string& folder) {
  std::map<int64_t, RemoteStep> steps;
  for (const objects::ListedObject& object : objects::object_store(folder).list(folder)) {
    const size_t slash = object.name.find('/');
    if (slash == std::string::npos) continue;
    const std::optional<int64_t> step = step_of_folder_name(object.name.substr(0, slash));
    if (!step) continue;
    steps[*step].objects.push_back(object.name);
    steps[*step].has_manifest |= object.name.substr(slash + 1) == kManifestName;
  }
  return steps;
}

std::string folder_of_step(const std::string& folder, int64_t step) {
  return objects::joined(folder, step_folder_name(step));
}

}  // namespace

std::vector<CompleteCheckpoint> remote_checkpoints(const std::string& folder) {
  std::vector<CompleteCheckpoint> found;
  for (const auto& [step, objects] : listed_steps(folder)) {
    if (objects.has_manifest)
      found.push_back({.step = step, .folder = folder_of_step(folder, step), .run = ""});
  }
  return found;
}

std::optional<CompleteCheckpoint> newest_remote_checkpoint(const std::string& folder,
                                                           std::string& passed_over,
                                                           const std::set<std::string>& refused) {
  std::vector<CompleteCheckpoint> found = remote_checkpoints(folder);
  for (; !found.empty(); found.pop_back()) {
    CompleteCheckpoint& newest = found.back();
    const std::string reason =
        refused.contains(newest.folder.string()) ? "it is damaged" : incompleteness(newest.folder);
    if (reason.empty()) {
      newest.run = run_of(read_manifest(newest.folder).training);
      return newest;
    }
    passed_over +=
        concat(passed_over.empty() ? "; skipped " : ", ", newest.folder.string(), " (", reason, ")");
  }
  return std::nullopt;
}

std::vector<std::string> prune_remote(const std::string& folder, const Retention& retention) {
  const std::map<int64_t, RemoteStep> steps = listed_steps(folder);
  std::vector<int64_t> complete;
  for (const auto& [step, objects] : steps) {
    if (objects.has_manifest) complete.push_back(step);
  }
  if (complete.empty()) return {};
  const size_t kept = retention.keep_last == 0 ? complete.size() : static_cast<size_t>(retention.keep_last);
  const int64_t first_kept = complete[complete.size() - std::min(kept, complete.size())];
  objects::ObjectStore& store = objects::object_store(folder);
  std::vector<std::string> removed;
  for (const auto& [step, objects] : steps) {
    const bool is_kept = step >= first_kept || std::ranges::count(retention.keep_steps, step) > 0 ||
                         (retention.keep_every > 0 && step % retention.keep_every == 0);
    if (objects.has_manifest ? is_kept : step >= complete.back()) continue;
    const std::string manifest = concat(step_folder_name(step), "/", kManifestName);
    if (objects.has_manifest) store.remove(objects::joined(folder, manifest));
    for (const std::string& object : objects.objects) {
      if (object != manifest) store.remove(objects::joined(folder, object));
    }
    if (objects.has_manifest) removed.push_back(folder_of_step(folder, step));
  }
  return removed;
}

}  // namespace fsdp::checkpoint
