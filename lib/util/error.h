#pragma once

// The errors of the library. The library throws and never exits; the programs turn an Error into its exit
// code.
//
// A user error is one sentence that names what was expected, what was found, where, and the remedy.
// An internal assertion (FSDP_CHECK) is apart from user errors, always on, and means a defect of the library.

#include <sstream>
#include <stdexcept>
#include <string>

namespace fsdp::util {

/// What kind of failure it is; the value is the exit code of a program that ends with it.
enum class ErrorKind : int {
  kUnexpected = 1,  ///< nothing below: a defect, or a failure of a library underneath
  kUsage = 2,       ///< command line, environment or config
  kData = 3,        ///< token files, texts, samples
  kCheckpoint = 4,  ///< a checkpoint or weights file is missing, torn or does not fit
  kPeerLost = 5,    ///< another process of the run is gone
  kTimeout = 6,     ///< a collective or rendezvous waited too long
  kIo = 7,          ///< disk full, permission, read or write failure
  kDiverged = 8,    ///< the loss or a norm is not finite
};

/// Exit code of a run that was told to stop and saved first (EX_TEMPFAIL).
inline constexpr int kExitPreempted = 75;

/// What the library throws for failures that are not its own defects.
class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message) : std::runtime_error(message), kind_(kind) {}
  ErrorKind kind() const { return kind_; }
  int exit_code() const { return static_cast<int>(kind_); }

 private:
  ErrorKind kind_;
};

/// Joins its arguments as a stream would print them.
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

/// Text of the system's errno value, such as "No space left on device".
std::string errno_text(int error_number);

/// Runs a program's body and turns what it throws into one logged line and an exit code. Under a launcher
/// that sets TORCHELASTIC_ERROR_FILE the line is written there too, as torchrun wants it.
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

/// Internal assertion, always on: FSDP_CHECK(condition, "what ", is, " wrong").
#define FSDP_CHECK(condition, ...)                                                                 \
  do {                                                                                             \
    if (!(condition)) {                                                                            \
      ::fsdp::util::detail::assertion_failed(__FILE__, __LINE__, #condition,                       \
                                             ::fsdp::util::concat("" __VA_OPT__(, ) __VA_ARGS__)); \
    }                                                                                              \
  } while (false)
