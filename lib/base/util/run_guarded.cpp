#include <cstdlib>
#include <ctime>
#include <fstream>
#include <string_view>

#include "base/util/error.h"
#include "base/util/limits.h"
#include "base/util/log.h"

// This file is apart from error.cpp, which torch_backend uses without the log.
namespace fsdp::util::detail {
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

}  // namespace fsdp::util::detail
