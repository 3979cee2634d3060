#include "state/manifest/folders.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <map>

#include "base/objects/object_name.h"
#include "base/objects/object_store.h"
#include "base/util/file.h"
#include "base/util/log.h"
#include "base/util/raw_file.h"
#include "base/util/system.h"
#include "base/util/text.h"
#include "state/manifest/digest.h"
#include "state/manifest/local_weights.h"
#include "state/manifest/manifest.h"
#include "state/manifest/run_identity.h"

namespace fsdp::checkpoint {
namespace fs = std::filesystem;
using util::errno_text;

namespace {

constexpr const char* kStepPrefix = "step-";
constexpr const char* kDeletingPrefix = ".deleting-";

std::vector<fs::path> children(const fs::path& folder) {
  std::error_code error;
  std::vector<fs::path> found;
  fs::directory_iterator at(folder, error);
  for (; !error && at != fs::directory_iterator(); at.increment(error)) found.push_back(at->path());
  if (error && error != std::errc::no_such_file_or_directory) {
    fail(ErrorKind::kIo, "cannot list the folder ", folder.string(), ": ", error.message());
  }
  std::sort(found.begin(), found.end());
  return found;
}

void remove_folder(const fs::path& folder) {
  std::error_code error;
  fs::remove_all(folder, error);
  if (error) fail(ErrorKind::kIo, "cannot remove ", folder.string(), ": ", error.message());
}

/// Finishes removals that were interrupted.
std::vector<fs::path> remove_half_deleted(const fs::path& root) {
  std::vector<fs::path> removed;
  for (const fs::path& child : children(root)) {
    if (!child.filename().string().starts_with(kDeletingPrefix)) continue;
    remove_folder(child);
    removed.push_back(child);
  }
  return removed;
}

/// Text for a message about skipped folders: "; skipped <folder> (<reason>), ..." or "".
std::string passed_over(const FoundCheckpoints& found) {
  std::string text;
  for (const TornCheckpoint& torn : found.torn) {
    text += concat(text.empty() ? "; skipped " : ", ", torn.folder.string(), " (", torn.reason, ")");
  }
  return text;
}

}  // namespace

std::string step_folder_name(int64_t step) {
  FSDP_CHECK(step >= 0);
  return util::printed("%s%08lld", kStepPrefix, static_cast<long long>(step));
}

std::optional<int64_t> step_of_folder_name(const std::string& name) {
  const std::string prefix = kStepPrefix;
  if (!name.starts_with(prefix)) return std::nullopt;
  int64_t step = 0;
  const char* end = name.data() + name.size();
  auto [stop, error] = std::from_chars(name.data() + prefix.size(), end, step);
  // Only the canonical spelling of a step is accepted.
  if (error != std::errc() || stop != end || step < 0 || step_folder_name(step) != name) return std::nullopt;
  return step;
}

namespace {

/// Why a folder is not a complete checkpoint. Sets `run` to the id in its manifest.
std::optional<TornCheckpoint> tear_of(int64_t step, const fs::path& folder, std::string* run = nullptr) {
  const auto torn = [&](Tear tear, std::string reason, ErrorKind kind = ErrorKind::kCheckpoint) {
    return TornCheckpoint{step, folder, std::move(reason), tear, kind};
  };
  std::error_code error;
  std::map<std::string, int64_t> remote_bytes;
  const bool is_remote = objects::is_remote(folder.string());
  if (is_remote) {
    for (const objects::ListedObject& object : objects::object_store(folder.string()).list(folder.string())) {
      remote_bytes[object.name] = object.size_bytes;
    }
  }
  if (is_remote ? !remote_bytes.contains(kManifestName)
                : !fs::exists(folder / kManifestName, error) && !error) {
    return torn(Tear::kUnfinished, concat("it has no ", kManifestName, ", so it was never finished"));
  }
  Manifest manifest;
  try {
    manifest = read_manifest(folder);
  } catch (const DamageError& failure) {
    return torn(Tear::kDamaged, failure.what());
  } catch (const util::Error& failure) {
    return torn(Tear::kUnreadable, failure.what(), failure.kind());
  }
  for (const FileEntry& file : manifest.files) {
    const auto remote = remote_bytes.find(file.name);
    if (is_remote && remote == remote_bytes.end()) {
      return torn(Tear::kDamaged, concat("its file ", file.name, " does not exist"), ErrorKind::kIo);
    }
    const auto bytes =
        is_remote ? static_cast<uintmax_t>(remote->second) : fs::file_size(folder / file.name, error);
    if (error) {
      const bool missing = error == std::errc::no_such_file_or_directory;
      return torn(missing ? Tear::kDamaged : Tear::kUnreadable,
                  concat("its file ", file.name, " cannot be read: ", error.message()), ErrorKind::kIo);
    }
    if (static_cast<int64_t>(bytes) != file.bytes) {
      return torn(Tear::kDamaged, concat("its file ", file.name, " has ", bytes,
                                         " bytes, but the manifest gives ", file.bytes));
    }
  }
  if (run != nullptr) *run = run_of(manifest.training);
  return std::nullopt;
}

}  // namespace

std::string incompleteness(const fs::path& folder) {
  const auto torn = tear_of(0, folder);
  return torn ? torn->reason : "";
}

FoundCheckpoints find_checkpoints(const fs::path& root) {
  FoundCheckpoints found;
  for (const fs::path& folder : children(root)) {
    auto step = step_of_folder_name(folder.filename().string());
    if (!step) continue;
    std::string run;
    if (auto torn = tear_of(*step, folder, &run)) {
      found.torn.push_back(std::move(*torn));
    } else {
      found.complete.push_back({*step, folder, std::move(run)});
    }
  }
  std::sort(found.complete.begin(), found.complete.end(),
            [](const CompleteCheckpoint& a, const CompleteCheckpoint& b) { return a.step < b.step; });
  return found;
}

std::vector<fs::path> prune(const fs::path& root, const Retention& retention) {
  FSDP_CHECK(retention.keep_last >= 0 && retention.keep_every >= 0);
  remove_half_deleted(root);
  std::vector<fs::path> removed;
  if (retention.keep_last == 0) return removed;
  std::vector<CompleteCheckpoint> complete = find_checkpoints(root).complete;
  std::erase_if(complete, [&](const CompleteCheckpoint& each) { return !is_of_run(each, retention.run); });
  for (size_t i = 0; i + static_cast<size_t>(retention.keep_last) < complete.size(); ++i) {
    if (retention.keep_every > 0 && complete[i].step % retention.keep_every == 0) continue;
    if (std::ranges::count(retention.keep_steps, complete[i].step) > 0) continue;
    const fs::path& folder = complete[i].folder;
    fs::path hidden = root / (kDeletingPrefix + folder.filename().string());
    util::rename_and_sync(folder, hidden);
    remove_folder(hidden);
    removed.push_back(folder);
  }
  return removed;
}

namespace {

/// Whether a folder contains nothing but empty folders.
bool holds_no_file(const fs::path& folder) {
  std::error_code error;
  for (fs::recursive_directory_iterator at(folder, error); !error && at != fs::recursive_directory_iterator();
       at.increment(error)) {
    if (!at->is_directory(error)) return false;
  }
  return !error;
}

/// Whether `run` began to fill a step's folder after the newest manifest was written.
bool was_begun_by(const fs::path& folder, const std::string& run, fs::file_time_type newest_manifest) {
  if (run.empty() || run_that_fills(folder) != run) return false;
  std::error_code error;
  const auto begun = fs::last_write_time(folder / kUnfinishedName, error);
  return !error && begun >= newest_manifest;
}

}  // namespace

Leftovers remove_leftovers(const fs::path& root, const std::string& run) {
  Leftovers found{.removed = remove_half_deleted(root), .set_aside = {}};
  std::vector<fs::path> unfinished;
  auto newest = fs::file_time_type::min();
  for (const fs::path& child : children(root)) {
    std::error_code error;
    const std::string name = child.filename().string();
    if (step_of_folder_name(name) && fs::is_directory(child, error)) {
      const bool has_manifest = fs::exists(child / kManifestName, error);
      if (!has_manifest && !error) unfinished.push_back(child);
      if (has_manifest) newest = std::max(newest, fs::last_write_time(child / kManifestName, error));
    }
    if (!util::is_temporary_name(name)) continue;
    remove_folder(child);
    found.removed.push_back(child);
  }
  for (const fs::path& folder : unfinished) {
    if (holds_no_file(folder) || was_begun_by(folder, run, newest)) {
      remove_folder(folder);
      found.removed.push_back(folder);
    } else {
      found.set_aside.push_back(set_aside(folder, kIncomplete));
    }
  }
  return found;
}

namespace {

/// The damaged checkpoints that "auto" skips. Throws if it must not skip one.
std::vector<TornCheckpoint> damaged_after_newest(const FoundCheckpoints& found, const fs::path& root) {
  std::vector<TornCheckpoint> damaged;
  for (const TornCheckpoint& torn : found.torn) {
    if (!found.complete.empty() && torn.step < found.complete.back().step) continue;
    if (torn.tear == Tear::kUnreadable) {
      fail(torn.kind, "the newest checkpoint ", torn.folder.string(), " cannot be read (", torn.reason,
           "), but may be intact; make it readable, or set checkpoint.resume to the checkpoint "
           "to resume from");
    }
    if (torn.tear == Tear::kDamaged) damaged.push_back(torn);
  }
  if (found.complete.empty() && !damaged.empty()) {
    fail(ErrorKind::kCheckpoint, "no checkpoint in ", root.string(), " is intact", passed_over(found),
         "; restore one from a copy, or start from scratch with checkpoint.resume=never or "
         "another run.output_dir");
  }
  return damaged;
}

}  // namespace

fs::path set_aside(const fs::path& folder, const char* reason) {
  std::error_code error;
  fs::path aside;
  for (int i = 1; i == 1 || fs::exists(fs::symlink_status(aside, error)); ++i) {
    aside = concat(folder.string(), ".", reason, "-", i);
  }
  util::rename_and_sync(folder, aside);
  return aside;
}

namespace {

/// Throws if the newest checkpoint in a run's output folder belongs to another run.
void require_own(const FoundCheckpoints& found, const fs::path& root) {
  const std::string own = recorded_run(root);
  const CompleteCheckpoint& newest = found.complete.back();
  const auto remedy = [&] {
    return concat(
        "; move the other run's checkpoints out of the folder, or set checkpoint.resume to the path of the "
        "one to resume from");
  };
  if (!is_of_run(newest, own)) {
    fail(ErrorKind::kCheckpoint, "the newest checkpoint in ", root.string(), " must be of the run ", own,
         ", as ", kRunName, " there records, but ", newest.folder.string(), " is of the run ", newest.run,
         remedy());
  }
  if (!own.empty()) return;
  for (const CompleteCheckpoint& other : found.complete) {
    if (is_of_run(other, newest.run)) continue;
    fail(ErrorKind::kCheckpoint, "the checkpoints in ", root.string(), " must be of one run, but ",
         newest.folder.string(), " is of the run ", newest.run, " and ", other.folder.string(),
         " of the run ", other.run, remedy());
  }
}

}  // namespace

ResumeChoice resolve_resume(const fs::path& root, const std::string& resume) {
  if (resume == "never")
    return {std::nullopt, "starting from scratch because checkpoint.resume is \"never\""};
  if (resume != "auto" && resume != "latest") {
    fs::path folder = checkpoint_folder(resume);
    require_state(read_manifest(folder), folder);
    return {folder, concat("resuming from ", folder.string(), ", as set by checkpoint.resume")};
  }
  FoundCheckpoints found = find_checkpoints(root);
  std::vector<TornCheckpoint> damaged;
  if (resume == "auto") damaged = damaged_after_newest(found, root);
  if (!found.complete.empty()) {
    require_own(found, root);
    const CompleteCheckpoint& newest = found.complete.back();
    require_state(read_manifest(newest.folder), newest.folder);
    return {newest.folder,
            concat("resuming from ", newest.folder.string(), ", the newest of ", found.complete.size(),
                   " complete checkpoint(s) in ", root.string(), passed_over(found)),
            std::move(damaged)};
  }
  if (resume == "latest") {
    fail(ErrorKind::kCheckpoint, "checkpoint.resume is \"latest\", but ", root.string(),
         " has no complete checkpoint; use \"auto\" to start from scratch", passed_over(found));
  }
  return {std::nullopt, concat("starting from scratch because ", root.string(), " has no complete checkpoint",
                               passed_over(found))};
}

fs::path checkpoint_folder(const fs::path& given) {
  const fs::path path = local_weights(given);
  if (is_remote_checkpoint(path)) {
    if (const std::string reason = incompleteness(path); !reason.empty()) {
      fail(ErrorKind::kCheckpoint, path.string(), " is not a complete checkpoint (", reason,
           "); name another step's folder");
    }
    return path;
  }
  std::error_code error;
  if (!fs::is_directory(path, error)) {
    fail(ErrorKind::kCheckpoint, path.string(),
         util::is_there(path) ? " must be the folder of a checkpoint, but is a file" : " does not exist",
         "; give a step's folder or a run's folder");
  }
  FoundCheckpoints found = find_checkpoints(path);
  if (!found.complete.empty() && !fs::exists(path / kManifestName, error))
    return found.complete.back().folder;
  std::string reason = incompleteness(path);
  if (!reason.empty()) {
    fail(ErrorKind::kCheckpoint, path.string(), " is not a checkpoint (", reason,
         ") and contains no complete step folder", passed_over(found));
  }
  return path;
}

void mark_best(const fs::path& root, int64_t step) {
  const fs::path link = root / kBestName, fresh = util::temporary_name(link);
  std::error_code error;
  if (fs::exists(fs::symlink_status(link, error)) && !fs::is_symlink(link, error)) {
    fail(ErrorKind::kIo, link.string(),
         " must be a symbolic link or not exist, because it is to mark the best checkpoint, "
         "but is something else; move it away");
  }
  fs::create_directory_symlink(step_folder_name(step), fresh, error);
  if (error) {
    fail(ErrorKind::kIo, "cannot create the symbolic link ", fresh.string(), ": ", error.message());
  }
  util::rename_and_sync(fresh, link);
}

std::optional<int64_t> best_step(const fs::path& root) {
  std::error_code error;
  const fs::path target = fs::read_symlink(root / kBestName, error);
  if (error || target.has_parent_path()) return std::nullopt;
  std::optional<int64_t> step = step_of_folder_name(target.string());
  if (step && !incompleteness(root / target).empty()) return std::nullopt;
  return step;
}

namespace {

std::string this_process() { return concat("process ", ::getpid(), " on ", util::host_name()); }

/// The lock holder's name from the file. Only for the message.
std::string holder_of(const util::Descriptor& file) {
  std::array<char, 300> text{};
  ssize_t count = ::pread(file.get(), text.data(), text.size(), 0);
  std::string holder(text.data(), count > 0 ? static_cast<size_t>(count) : 0);
  bool is_name = holder.starts_with("process ");
  for (char c : holder) is_name = is_name && c >= ' ' && c <= '~';
  return is_name ? holder : "another process";
}

}  // namespace

// The file is never removed, because two runs could then lock two files of the same name.
RunLock::RunLock(const fs::path& folder) : path_(folder / kRunLockName), file_(util::open_lock_file(path_)) {
  if (::flock(file_.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK) {
      fail(ErrorKind::kUsage, "run.output_dir ", folder.string(),
           " is in use by another run: ", holder_of(file_), " has locked ", path_.string(),
           "; wait for it to end or choose another run.output_dir");
    }
    util::log_warning(concat("cannot lock ", path_.string(), " (", errno_text(errno),
                             "); nothing will prevent a second run from using this folder"));
    return;
  }
  std::string text = this_process();
  // The text only improves the message of a refused run, so a full disk does not matter here.
  if (::ftruncate(file_.get(), 0) == 0) {
    [[maybe_unused]] ssize_t written = ::pwrite(file_.get(), text.data(), text.size(), 0);
  }
}

void RunLock::require_same_folder() const {
  struct stat locked {
  }, named{};
  std::string found;
  if (::stat(path_.c_str(), &named) != 0) {
    // Storage that does not respond now may respond when saving.
    if (errno != ENOENT && errno != ENOTDIR) return;
    found = concat("none of that name with this run's ", kRunLockName);
  } else if (::fstat(file_.get(), &locked) == 0 &&
             (locked.st_dev != named.st_dev || locked.st_ino != named.st_ino)) {
    found = "another one of that name";
  } else {
    return;
  }
  fail(ErrorKind::kIo, "run.output_dir ", path_.parent_path().string(),
       " must be the folder that this run started with, but there is ", found,
       ": it was removed, replaced or unmounted; put it back, or remove it, and start again");
}

}  // namespace fsdp::checkpoint
