#include "run/train/record_file.h"

#include <cerrno>

#include "base/util/error.h"
#include "base/util/file.h"
#include "base/util/log.h"

namespace fsdp::train {
namespace fs = std::filesystem;

RecordFile::RecordFile(const fs::path& path) : path_(path) {
  file_.open(path_, std::ios::app | std::ios::binary);
  if (!file_) fail(ErrorKind::kIo, "cannot open ", path_.string(), ": ", util::errno_text(errno));
  whole_bytes_ = fs::file_size(path_);
}

void RecordFile::append(std::string_view record) {
  file_ << record << std::flush;
  if (file_) {
    whole_bytes_ += record.size();
    failing_ = false;
    return;
  }
  int cause = errno;
  if (!failing_) {
    util::log_warning(concat("cannot write ", path_.string(), ": ", util::errno_text(cause),
                             "; steps are missing in it until there is space on that disk"));
  }
  failing_ = true;
  // The stream still holds the record and may have written a part of it.
  file_.close();
  std::error_code ignored;
  fs::resize_file(path_, whole_bytes_, ignored);
  file_.clear();
  file_.open(path_, std::ios::app | std::ios::binary);
}

void put_aside(const fs::path& path) {
  for (int n = 1;; ++n) {
    fs::path aside = path.parent_path() / concat(path.stem().string(), ".", n, path.extension().string());
    if (fs::exists(aside)) continue;
    util::rename_and_sync(path, aside);
    return;
  }
}

}  // namespace fsdp::train
