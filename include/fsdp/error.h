#pragma once

/// \file
/// Errors. The library throws and never exits. An error that a user can fix is an fsdp::Error: one sentence
/// with the expected value, the value found, where, and the remedy. Its kind is also the exit code of a
/// program that ends with it. Any other exception is a defect of the library or of a third-party library.
///
/// Collective: nothing. If one rank throws, the others wait for it; see fsdp::agree() in
/// fsdp/communicator.h.
///
/// Lifetime: an Error owns its message.
///
/// \code{.cpp}
/// int main() {
///   return fsdp::run_guarded([] {                  // logs one line and returns the exit code
///     try {
///       fsdp::read_launch_environment();
///     } catch (const fsdp::Error& error) {
///       if (error.kind() != fsdp::ErrorKind::kUsage) throw;
///       std::cerr << "not started by a launcher: " << error.what() << "\n";
///     }
///     return 0;
///   });
/// }
/// \endcode

#include "base/util/error.h"

namespace fsdp {

using util::Error;
using util::ErrorKind;
using util::fail;
using util::run_guarded;

}  // namespace fsdp
