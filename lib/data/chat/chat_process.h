#pragma once

// A child process that handles untrusted input: endless loops, deep recursion and unbounded memory end the
// process, and the program continues.

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>

namespace fsdp::data {

struct ProcessLimits {
  double seconds = 10;  ///< limit on processor time for each request
  /// Limit on memory beyond the program's when the process starts.
  int64_t memory_bytes = int64_t{512} << 20;
};

/// Reason why the process ended, as the end of a sentence about its input: "takes more than 10 seconds".
class ProcessEnded : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A process that answers requests. Not thread-safe.
class ChatProcess {
 public:
  /// Function called in the child for each request. An exception ends the process.
  using Handler = std::function<std::string(const std::string& request)>;

  /// Forks. Throws Error(kIo) if the system refuses.
  ChatProcess(const Handler& handler, const ProcessLimits& limits);
  ~ChatProcess();
  ChatProcess(const ChatProcess&) = delete;
  ChatProcess& operator=(const ChatProcess&) = delete;

  /// Sends a request and returns the answer. Throws ProcessEnded, after which the object cannot be used.
  std::string call(const std::string& request);

 private:
  [[noreturn]] void report_end(bool waited);

  ProcessLimits limits_;
  pid_t pid_ = -1;
  int socket_ = -1;
};

}  // namespace fsdp::data
