#include "tools/report/timeline_file.h"

#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "base/util/error.h"
#include "base/util/extension.h"
#include "base/util/file.h"
#include "base/util/regular_file.h"
#include "tools/report/step_picture.h"

namespace fsdp::report {
namespace {

bool is_picture(const std::filesystem::path& timeline) { return util::extension_of(timeline) == ".svg"; }

}  // namespace

void check_timeline(const std::filesystem::path& path) {
  if (path.empty()) return;
  if (!is_picture(path) && util::extension_of(path) != ".json") {
    fail(ErrorKind::kUsage,
         "--timeline must be a file that ends in .svg (a picture) or .json (a Chrome trace), "
         "but is ",
         path.string(), "; add one of these endings");
  }
  const std::filesystem::path probe = util::temporary_name(path);
  std::error_code ignored;
  const bool is_folder = std::filesystem::is_directory(path, ignored);
  const int fd = is_folder ? -1 : util::create_own_file(probe);
  if (fd < 0) {
    fail(ErrorKind::kIo, "--timeline: cannot write ", path.string(), ": ",
         is_folder ? "it is a folder" : util::errno_text(errno));
  }
  ::close(fd);
  std::filesystem::remove(probe, ignored);
}

void write_timeline(const std::filesystem::path& path, const comm::StepTracks& tracks,
                    const std::string& title, const TimelineRange& range) {
  if (path.empty()) return;
  util::write_file_atomically(path, is_picture(path)
                                        ? step_picture(tracks, {.title = title,
                                                                .begin_us = range.begin_us,
                                                                .end_us = range.end_us,
                                                                .stands_alone = true})
                                        : comm::chrome_trace(tracks, /*rank=*/0, range.begin_us));
}

}  // namespace fsdp::report
