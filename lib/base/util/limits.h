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

/// For the start of every program. Makes a file that grows beyond the limit (ulimit -f) an error instead of a
/// fatal signal, and raises the limit on open files to 1024 if permitted. Throws Error(kUsage) if it is below
/// 64, since errors due to missing descriptors seldom name the cause.
void prepare_for_limits();

/// Raises the limit on open files, if permitted, so that `more` can be opened beside those that are open. Throws
/// Error(kUsage) if they cannot; the message begins with what they are for: "10240 nodes are to meet here".
void make_room_for_files(int64_t more, const std::string& purpose);

/// " (the limit on the size of files, ulimit -f, is 65536 bytes)"; empty if there is none.
std::string file_size_limit_text();
/// The same for address space, ulimit -v.
std::string address_space_limit_text();

/// An exception of a third-party library in one line: with the limits if memory or a thread was refused; else
/// its first line, since libtorch appends a C++ backtrace.
Error without_backtrace(const std::exception& error);

/// kUsage, with the limits on threads.
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
