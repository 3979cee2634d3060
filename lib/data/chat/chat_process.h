#pragma once

// A child process in which untrusted input is worked on: endless loops, deep recursion and memory without end are
// ended there, and the program goes on.

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>

namespace fsdp::data {

struct ProcessLimits {
  double seconds = 10;                        ///< of processor time, for each request
  int64_t memory_bytes = int64_t{512} << 20;  ///< beyond what the program has when the process starts
};

/// Why the process ended, as the end of a sentence about what it worked on: "takes more than 10 seconds".
class ProcessEnded : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Not thread-safe.
class ChatProcess {
 public:
  /// Called in the child for each request. An exception ends the process.
  using Handler = std::function<std::string(const std::string& request)>;

  /// Forks. Throws Error(kIo) where the system refuses.
  ChatProcess(const Handler& handler, const ProcessLimits& limits);
  ~ChatProcess();
  ChatProcess(const ChatProcess&) = delete;
  ChatProcess& operator=(const ChatProcess&) = delete;

  /// Throws ProcessEnded, after which the object is of no use.
  std::string call(const std::string& request);

 private:
  [[noreturn]] void report_end(bool waited);

  ProcessLimits limits_;
  pid_t pid_ = -1;
  int socket_ = -1;
};

}  // namespace fsdp::data
