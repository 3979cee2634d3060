#include "state/manifest/staged_output.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "base/util/error.h"
#include "base/util/file.h"
#include "base/util/log.h"
#include "base/util/raw_file.h"

namespace fsdp::checkpoint {
namespace fs = std::filesystem;
using util::errno_text;

namespace {

/// The path, absolute and without a slash at the end, so that it always has a name and a parent.
fs::path plain_path(const fs::path& path) {
  fs::path plain = fs::absolute(path).lexically_normal();
  return plain.has_filename() ? plain : plain.parent_path();
}

bool is_there(const fs::path& path) {
  std::error_code error;
  return fs::exists(fs::symlink_status(path, error));
}

util::Descriptor open_folder(const fs::path& path) {
  return util::Descriptor(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
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
  if (is_there(path)) fail(ErrorKind::kCheckpoint, path.string(), " already exists; ", remedy);
}

void replace_by_renaming(const fs::path& folder, const fs::path& by, const fs::path& aside) {
  util::rename_and_sync(folder, aside);
  try {
    util::rename_and_sync(by, folder);
  } catch (...) {
    std::error_code ignored;
    fs::rename(aside, folder, ignored);
    throw;
  }
}

StagedFolder::StagedFolder(const fs::path& target, bool may_replace)
    : target_(plain_path(target)), may_replace_(may_replace) {
  std::error_code error;
  if (may_replace && fs::is_symlink(target_, error) && fs::is_directory(target_, error)) {
    target_ = fs::canonical(target_);
  }
  const auto beside = [&](const char* what) {
    return target_.parent_path() / concat(".", target_.filename().string(), what);
  };
  staging_ = beside(".partial");
  replaced_ = beside(".replaced");
  refuse_filled_target();
  util::make_writable_folder(target_.parent_path());
  lock();
  try {
    clean();
    refuse_filled_target();
  } catch (...) {
    ::rmdir(staging_.c_str());
    throw;
  }
}

void StagedFolder::refuse_filled_target() const {
  std::error_code error;
  const bool is_folder = fs::is_directory(target_, error);
  if (!is_there(target_) || is_empty_folder(target_) || (may_replace_ && is_folder)) return;
  fail(ErrorKind::kCheckpoint, target_.string(),
       " already exists and is not an empty folder; choose another output", is_folder ? " or remove it" : "");
}

void StagedFolder::clean() {
  if (!is_empty_folder(staging_)) {
    util::log_info(concat("removing what an interrupted run left in ", staging_.string()));
    remove_content(staging_);
  }
  if (!is_there(replaced_)) return;
  if (is_there(target_)) {
    std::error_code ignored;
    fs::remove_all(replaced_, ignored);
  } else {
    util::log_info(concat("restoring ", target_.string(), ", which an interrupted run had moved aside"));
    util::rename_and_sync(replaced_, target_);
  }
}

void StagedFolder::lock() {
  for (;;) {
    if (::mkdir(staging_.c_str(), 0755) != 0 && errno != EEXIST) {
      fail(ErrorKind::kIo, "cannot create the folder ", staging_.string(), ": ", errno_text(errno));
    }
    fd_ = open_folder(staging_);
    if (!fd_.is_open() && errno == ENOENT) continue;
    if (!fd_.is_open())
      fail(ErrorKind::kIo, "cannot open the folder ", staging_.string(), ": ", errno_text(errno));
    if (::flock(fd_.get(), LOCK_EX | LOCK_NB) != 0) {
      if (errno != EWOULDBLOCK)
        fail(ErrorKind::kIo, "cannot lock ", staging_.string(), ": ", errno_text(errno));
      fail(ErrorKind::kCheckpoint, staging_.string(),
           " is being written by another process; wait for it or choose another output");
    }
    // The previous owner may have renamed the folder to its final name between open and lock. It is not ours
    // then.
    if (util::still_has_its_name(fd_, staging_)) return;
    fd_.close();
  }
}

StagedFolder::~StagedFolder() {
  std::error_code ignored;
  if (fd_.is_open()) fs::remove_all(staging_, ignored);
}

void StagedFolder::commit(const std::function<bool(const std::string& name)>& replaces) {
  // rename() replaces an empty folder, and fails if another process has put something there in the meantime.
  if (!is_there(target_) || is_empty_folder(target_)) {
    util::sync_path(staging_);
    util::rename_and_sync(staging_, target_);
    return fd_.close();
  }
  if (!may_replace_) refuse_existing(target_, "another process has created it in the meantime");
  keep(replaces);
  util::sync_path(staging_);
  replace_target();
}

void StagedFolder::keep(const std::function<bool(const std::string& name)>& replaces) const {
  constexpr auto kAll = fs::copy_options::recursive | fs::copy_options::copy_symlinks;
  bool only_links = true;
  for (const fs::directory_entry& entry : fs::directory_iterator(target_)) {
    const fs::path name = entry.path().filename(), kept = staging_ / name;
    const bool is_folder = fs::is_directory(entry.symlink_status());
    if (is_there(kept)) {
      if (!is_folder) continue;
      fail(ErrorKind::kCheckpoint, entry.path().string(),
           " must be a file, which is to be replaced, but is a folder; remove it");
    }
    if (!is_folder && replaces && replaces(name.string())) continue;
    std::error_code error;
    fs::copy(entry.path(), kept, kAll | fs::copy_options::create_hard_links, error);
    if (error) {  // not every file system has links
      fs::remove_all(kept, error);
      fs::copy(entry.path(), kept, kAll, error);
      only_links = false;
    }
    if (error) {
      fail(ErrorKind::kIo, "cannot keep ", entry.path().string(), " as ", kept.string(), ": ",
           error.message());
    }
    only_links = only_links && !is_folder;
  }
  if (!only_links) ::syncfs(fd_.get());
  std::error_code ignored;
  fs::permissions(staging_, fs::status(target_, ignored).permissions(), ignored);
}

void StagedFolder::replace_target() {
  // The old folder gets the temporary name: locked, so that no other process reuses it before it is removed.
  const util::Descriptor old = open_folder(target_);
  if (!old.is_open() || ::flock(old.get(), LOCK_EX | LOCK_NB) != 0) {
    fail(ErrorKind::kIo, "cannot lock ", target_.string(), ", which is to be replaced: ", errno_text(errno));
  }
  std::error_code ignored;  // the next run removes the rest of the old folder
  if (::renameat2(AT_FDCWD, staging_.c_str(), AT_FDCWD, target_.c_str(), RENAME_EXCHANGE) == 0) {
    util::sync_path(target_.parent_path());
    fs::remove_all(staging_, ignored);
  } else if (errno == EINVAL || errno == ENOSYS || errno == EOPNOTSUPP) {
    replace_by_renaming(target_, staging_, replaced_);
    fs::remove_all(replaced_, ignored);
  } else {
    fail(ErrorKind::kIo, "cannot exchange ", staging_.string(), " and ", target_.string(), ": ",
         errno_text(errno));
  }
  fd_.close();
}

}  // namespace fsdp::checkpoint
