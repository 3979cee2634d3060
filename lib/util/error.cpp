#include "util/error.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fstream>
#include <string_view>

#include "util/limits.h"
#include "util/log.h"

namespace fsdp::util {

std::string errno_text(int error_number) {
  char buffer[256];
  // The GNU version returns the text, which is not always in the buffer.
  const std::string text = strerror_r(error_number, buffer, sizeof(buffer));
  return error_number == EFBIG ? text + file_size_limit_text() : text;
}

namespace detail {

void assertion_failed(const char* file, int line, const char* condition, const std::string& detail) {
  const char* base = std::strrchr(file, '/');
  fail(ErrorKind::kUnexpected, "internal error at ", base ? base + 1 : file, ":", line, ": ", condition,
       " does not hold", detail.empty() ? "" : ": ", detail, " (please report this)");
}

namespace {

std::string json_string(const std::string& text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += static_cast<unsigned char>(c) < ' ' ? ' ' : c;
  }
  return quoted + "\"";
}

/// Reports to torchrun or fsdp-launch why this process exits, in the format of torch.distributed.elastic.
/// Nothing happens without such a launcher or when the file cannot be written.
void tell_launcher(const std::string& message, int exit_code) {
  const char* path = std::getenv("TORCHELASTIC_ERROR_FILE");
  if (path == nullptr || *path == '\0') return;
  std::ofstream(path) << "{\"message\": {\"message\": " << json_string(message)
                      << ", \"errorCode\": " << exit_code
                      << ", \"extraInfo\": {\"py_callstack\": \"\", \"timestamp\": \"" << std::time(nullptr)
                      << "\"}}}\n";
}

int report(const std::string& message, ErrorKind kind) {
  log_error(message);
  tell_launcher(message, static_cast<int>(kind));
  return static_cast<int>(kind);
}

}  // namespace

int report_current_exception() {
  try {
    throw;
  } catch (const Error& error) {
    return report(error.what(), error.kind());
  } catch (const std::exception& error) {
    log_debug(error.what());
    const Error plain = without_backtrace(error);
    const bool is_explained =
        plain.kind() != ErrorKind::kUnexpected || std::string_view(plain.what()).starts_with("out of memory");
    return report(is_explained ? plain.what() : concat("unexpected failure: ", plain.what()), plain.kind());
  } catch (...) {
    return report("unexpected failure of unknown type", ErrorKind::kUnexpected);
  }
}

}  // namespace detail
}  // namespace fsdp::util
