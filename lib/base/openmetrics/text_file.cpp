#include "base/openmetrics/text_file.h"

#include <sys/stat.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "base/util/clock.h"
#include "base/util/descriptor.h"
#include "base/util/error.h"
#include "base/util/file.h"
#include "base/util/limits.h"
#include "base/util/log.h"
#include "base/util/regular_file.h"

namespace fsdp::openmetrics {

TextFile::TextFile(std::filesystem::path path, std::function<std::string()> text, double interval_seconds)
    : path_(std::move(path)), text_(std::move(text)) {
  write();
  try {
    thread_ = std::jthread([this, interval_seconds](const std::stop_token& stop) {
      std::unique_lock lock(mutex_);
      do {
        end_.wait_for(lock, stop, util::duration_of(interval_seconds), [] { return false; });
        write_again();
      } while (!stop.stop_requested());
    });
  } catch (const std::system_error& error) {
    throw util::thread_refusal(error);
  }
}

TextFile::~TextFile() = default;

/// Does not sync: a reader of a living system sees the renamed file in any case.
void TextFile::write() const {
  const std::filesystem::path temporary = util::temporary_name(path_);
  const auto refuse = [&](const char* what) {
    const int error = errno;
    ::unlink(temporary.c_str());
    fail(ErrorKind::kIo, "cannot ", what, " ", path_.string(), ": ", util::errno_text(error));
  };
  util::Descriptor file(util::create_own_file(temporary));
  if (!file.is_open()) refuse("create");
  constexpr mode_t kReadableByAll = 0644;
  if (::fchmod(file.get(), kReadableByAll) != 0) refuse("set the permissions of");
  try {
    util::write_all(file.get(), text_(), temporary);
  } catch (...) {
    ::unlink(temporary.c_str());
    throw;
  }
  file.close();
  if (::rename(temporary.c_str(), path_.c_str()) != 0) refuse("replace");
}

void TextFile::write_again() {
  try {
    write();
    failing_ = false;
  } catch (const std::exception& error) {
    if (!std::exchange(failing_, true))
      util::log_warning(concat(error.what(), "; it is written again later"));
  }
}

}  // namespace fsdp::openmetrics
