#include "util/error.h"

#include <cstring>
#include <new>

#include "util/log.h"

namespace fsdp::util {

std::string errno_text(int error_number) {
  char buffer[256];
  // The GNU form returns the text, which need not lie in the buffer.
  return strerror_r(error_number, buffer, sizeof(buffer));
}

namespace detail {

void assertion_failed(const char* file, int line, const char* condition, const std::string& detail) {
  const char* base = std::strrchr(file, '/');
  fail(ErrorKind::kUnexpected, "internal error at ", base ? base + 1 : file, ":", line, ": ", condition,
       " does not hold", detail.empty() ? "" : ": ", detail, " (please report this)");
}

int report_current_exception() {
  try {
    throw;
  } catch (const Error& error) {
    log_error(error.what());
    return error.exit_code();
  } catch (const std::bad_alloc&) {
    log_error("out of memory: this process was refused an allocation by the system");
  } catch (const std::exception& error) {
    // libtorch appends a C++ backtrace to its messages; the first line says what happened.
    std::string text = error.what();
    log_error("unexpected failure: " + text.substr(0, text.find('\n')));
    log_debug(text);
  } catch (...) {
    log_error("unexpected failure of unknown type");
  }
  return static_cast<int>(ErrorKind::kUnexpected);
}

}  // namespace detail
}  // namespace fsdp::util
