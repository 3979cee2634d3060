#pragma once

// The system's limits on a process (setrlimit(2), control groups), which messages name when one is reached.

#include <cstdint>
#include <exception>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "base/util/error.h"

namespace fsdp::util {

/// Prepares a program at its start: a file that grows beyond the limit (ulimit -f) becomes an error instead
/// of a fatal signal, and the limit on open files is raised to 1024 if permitted. Throws Error(kUsage) if
/// that limit is below 64, since errors due to missing descriptors seldom name the cause.
void prepare_for_limits();

/// Raises the limit on open files, if permitted, so that `more` files can be opened in addition to the open
/// ones. Throws Error(kUsage) if the limit is too low. `purpose` begins the message: "10240 nodes are to meet
/// here".
void make_room_for_files(int64_t more, const std::string& purpose);

/// " (the limit on the size of files, ulimit -f, is 65536 bytes)"; empty if there is none.
std::string file_size_limit_text();
/// The same for the limit on address space, ulimit -v.
std::string address_space_limit_text();

/// Describes an exception of a third-party library in one line. If memory or a thread was refused, the line
/// names the limits; otherwise it is the first line of the message, since libtorch appends a C++ backtrace.
Error without_backtrace(const std::exception& error);

/// Returns an Error(kUsage) that names the limits on threads.
Error thread_refusal(const std::system_error& cause);

template <typename Body>
std::thread start_thread(Body&& body) {
  try {
    return std::thread(std::forward<Body>(body));
  } catch (const std::system_error& error) {
    throw thread_refusal(error);
  }
}

}  // namespace fsdp::util
