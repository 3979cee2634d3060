#include "checkpoint/best.h"

#include "checkpoint/folders.h"
#include "util/error.h"
#include "util/file.h"

namespace fsdp::checkpoint {
namespace fs = std::filesystem;

void mark_best(const fs::path& root, int64_t step) {
  const fs::path link = root / kBestName, fresh = util::temporary_name(link);
  std::error_code error;
  if (fs::exists(fs::symlink_status(link, error)) && !fs::is_symlink(link, error)) {
    util::fail(util::ErrorKind::kIo, "expected nothing or a symbolic link at ", link.string(),
               ", where the best checkpoint is to be marked, and found something else; move it away");
  }
  fs::create_directory_symlink(step_folder_name(step), fresh, error);
  if (error) {
    util::fail(util::ErrorKind::kIo, "cannot make the symbolic link ", fresh.string(), ": ", error.message());
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

}  // namespace fsdp::checkpoint
