#pragma once

// Errors. The library throws and never exits; the programs turn an Error into its exit code.
//
// The message of a user error is one sentence that names what was expected, what was found, where, and the
// remedy. Internal assertions (FSDP_CHECK) are always on; one that fails is a defect of the library.

#include <sstream>
#include <stdexcept>
#include <string>

namespace fsdp::util {

/// The value is the exit code of the program.
enum class ErrorKind : int {
  kUnexpected = 1,  ///< any other error: a defect, or a failure of a third-party library
  kUsage = 2,       ///< command line, environment or config
  kData = 3,        ///< token files, texts, samples
  kCheckpoint = 4,  ///< a checkpoint or weights file is missing, torn or does not fit
  kPeerLost = 5,    ///< another process of the run is gone
  kTimeout = 6,     ///< a collective or rendezvous waited too long
  kIo = 7,          ///< disk full, permission, read or write failure
  kDiverged = 8,    ///< the loss or a norm is not finite
};

/// Exit code of a run that was preempted and has saved a checkpoint (EX_TEMPFAIL).
inline constexpr int kExitPreempted = 75;

/// Thrown by the library for all failures except its own defects.
class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message) : std::runtime_error(message), kind_(kind) {}
  ErrorKind kind() const { return kind_; }
  int exit_code() const { return static_cast<int>(kind_); }

 private:
  ErrorKind kind_;
};

/// Concatenates its arguments as a stream prints them.
template <typename... Parts>
std::string concat(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

/// Throws Error(kind, concat(parts...)).
template <typename... Parts>
[[noreturn]] void fail(ErrorKind kind, const Parts&... parts) {
  throw Error(kind, concat(parts...));
}

/// The system's text for an errno value, such as "No space left on device".
std::string errno_text(int error_number);

/// Runs a program's body, and turns an exception into one logged line and an exit code. The line is also
/// written to TORCHELASTIC_ERROR_FILE, if a launcher sets it, in torchrun's format.
template <typename Body>
int run_guarded(Body&& body);

namespace detail {
[[noreturn]] void assertion_failed(const char* file, int line, const char* condition,
                                   const std::string& detail);
int report_current_exception();
}  // namespace detail

template <typename Body>
int run_guarded(Body&& body) {
  try {
    return body();
  } catch (...) {
    return detail::report_current_exception();
  }
}

}  // namespace fsdp::util

namespace fsdp {
// Every component throws, so these need no qualification.
using util::concat;
using util::Error;
using util::ErrorKind;
using util::fail;
}  // namespace fsdp

/// Internal assertion, always on: FSDP_CHECK(condition, "what ", is, " wrong").
#define FSDP_CHECK(condition, ...)                                                                 \
  do {                                                                                             \
    if (!(condition)) {                                                                            \
      ::fsdp::util::detail::assertion_failed(__FILE__, __LINE__, #condition,                       \
                                             ::fsdp::util::concat("" __VA_OPT__(, ) __VA_ARGS__)); \
    }                                                                                              \
  } while (false)
