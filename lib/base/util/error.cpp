#include "base/util/error.h"

#include <cstring>

#include "base/util/limits.h"

namespace fsdp::util {

std::string errno_text(int error_number) {
  char buffer[256];
  // The GNU version of strerror_r() returns the text, which is not always in the buffer.
  const std::string text = strerror_r(error_number, buffer, sizeof(buffer));
  return error_number == EFBIG ? text + file_size_limit_text() : text;
}

namespace detail {

void assertion_failed(const char* file, int line, const char* condition, const std::string& detail) {
  const char* base = std::strrchr(file, '/');
  fail(ErrorKind::kUnexpected, "internal error at ", base ? base + 1 : file, ":", line,
       ": assertion failed: ", condition, detail.empty() ? "" : ": ", detail, " (please report this)");
}

}  // namespace detail
}  // namespace fsdp::util
