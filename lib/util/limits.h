#pragma once

// The limits that the system sets a process (setrlimit(2), control groups), told by name where one is met.

#include <exception>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "util/error.h"

namespace fsdp::util {

/// To be called by every program before it does anything: a file that grows beyond the limit (ulimit -f) is
/// an error from here on and no signal that ends the process, and the limit on open files is raised to 1024
/// where the system lets us. Throws Error(kUsage) where it is below 64: what fails without descriptors seldom
/// says why.
void prepare_for_limits();

/// " (the limit on the size of files, ulimit -f, is 65536 bytes)"; empty when there is none.
std::string file_size_limit_text();
/// The same for address space, ulimit -v.
std::string address_space_limit_text();

/// What a library below threw, in one line: where memory or a thread was refused, with the limits; otherwise
/// the first line, because libtorch appends a backtrace of C++.
Error without_backtrace(const std::exception& error);

/// For a thread that the system refused: kUsage, with the limits.
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
