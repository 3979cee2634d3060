#pragma once

// What the library logs, for tests.

#include <functional>
#include <mutex>
#include <string>

#include "base/util/log.h"

namespace fsdp::testing {

/// The lines that are logged while `body` runs.
inline std::string log_lines(const std::function<void()>& body) {
  std::string lines;
  std::mutex mutex;
  util::set_log_sink([&](util::LogLevel, std::string_view line) {
    std::lock_guard lock(mutex);
    lines += std::string(line) + "\n";
  });
  struct Restore {
    ~Restore() { util::set_log_sink({}); }
  } restore;
  body();
  return lines;
}

}  // namespace fsdp::testing
