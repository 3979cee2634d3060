#include "checkpoint/staged_output.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <vector>

#include "util/error.h"
#include "util/file.h"
#include "util/log.h"

namespace fsdp::checkpoint {
namespace fs = std::filesystem;
using util::concat;
using util::errno_text;
using util::ErrorKind;
using util::fail;

namespace {

/// Absolute and without a slash at the end, so that there is always a name and a parent.
fs::path plain_path(const fs::path& path) {
  fs::path plain = fs::absolute(path).lexically_normal();
  return plain.has_filename() ? plain : plain.parent_path();
}

bool is_there(const fs::path& path) {
  std::error_code error;
  return fs::exists(fs::symlink_status(path, error));
}

void remove_content(const fs::path& folder) {
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    fs::remove_all(at->path(), error);
    if (error) break;
  }
  if (error) fail(ErrorKind::kIo, "cannot empty the folder ", folder.string(), ": ", error.message());
}

}  // namespace

bool is_empty_folder(const fs::path& path) {
  std::error_code error;
  return fs::is_directory(fs::symlink_status(path, error)) && fs::is_empty(path, error) && !error;
}

void refuse_existing(const fs::path& path, const char* remedy) {
  if (is_there(path)) fail(ErrorKind::kCheckpoint, path.string(), " is there already; ", remedy);
}

StagedFolder::StagedFolder(const fs::path& target, bool may_add)
    : target_(plain_path(target)),
      staging_(target_.parent_path() / concat(".", target_.filename().string(), ".partial")),
      may_add_(may_add) {
  std::error_code error;
  if (is_there(target_) && !is_empty_folder(target_) && !(may_add_ && fs::is_directory(target_, error))) {
    fail(ErrorKind::kCheckpoint, target_.string(),
         " is there already and is not an empty folder; choose another output",
         fs::is_directory(target_, error) ? " or remove it" : "");
  }
  util::make_writable_folder(target_.parent_path());
  lock();
  try {
    if (!is_empty_folder(staging_)) {
      util::log_info(concat("removing what an interrupted run left in ", staging_.string()));
      remove_content(staging_);
    }
  } catch (...) {
    ::close(fd_);
    throw;
  }
}

void StagedFolder::lock() {
  for (;;) {
    if (::mkdir(staging_.c_str(), 0755) != 0 && errno != EEXIST) {
      fail(ErrorKind::kIo, "cannot make the folder ", staging_.string(), ": ", errno_text(errno));
    }
    fd_ = ::open(staging_.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd_ < 0 && errno == ENOENT) continue;
    if (fd_ < 0) fail(ErrorKind::kIo, "cannot open the folder ", staging_.string(), ": ", errno_text(errno));
    if (::flock(fd_, LOCK_EX | LOCK_NB) != 0) {
      int cause = errno;
      ::close(fd_);
      if (cause != EWOULDBLOCK)
        fail(ErrorKind::kIo, "cannot lock ", staging_.string(), ": ", errno_text(cause));
      fail(ErrorKind::kCheckpoint, staging_.string(),
           " is being filled by another process; wait for it or choose another output");
    }
    // Between open and lock the former owner may have given the folder its final name: that one is not ours.
    struct stat opened {
    }, named{};
    if (::fstat(fd_, &opened) == 0 && ::lstat(staging_.c_str(), &named) == 0 &&
        opened.st_ino == named.st_ino && opened.st_dev == named.st_dev) {
      return;
    }
    ::close(fd_);
  }
}

StagedFolder::~StagedFolder() {
  if (fd_ < 0) return;
  std::error_code ignored;
  fs::remove_all(staging_, ignored);
  ::close(fd_);
}

void StagedFolder::commit(const std::string& last_file,
                          const std::function<void(const fs::path&)>& before_adding) {
  util::sync_path(staging_);
  // Renaming replaces an empty folder, and fails where another process has put something in the meantime.
  if (!is_there(target_) || is_empty_folder(target_)) {
    util::rename_and_sync(staging_, target_);
    ::close(fd_);
    fd_ = -1;
    return;
  }
  if (!may_add_) refuse_existing(target_, "another process has made it in the meantime");
  if (before_adding) before_adding(target_);
  std::vector<fs::path> names;
  for (const fs::directory_entry& entry : fs::directory_iterator(staging_)) {
    if (entry.path().filename() != last_file) names.push_back(entry.path().filename());
  }
  for (const fs::path& name : names) util::rename_and_sync(staging_ / name, target_ / name);
  util::rename_and_sync(staging_ / last_file, target_ / last_file);
}

}  // namespace fsdp::checkpoint
