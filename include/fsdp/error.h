#pragma once

/// \file
/// Errors. The library throws and never exits. What a user can mend is an fsdp::Error: one sentence that
/// names what was expected, what was found, where, and the remedy, with a kind that is also the exit code of
/// a program that ends with it. Anything else that is thrown is a defect of the library or of one below it.
///
/// Collective: nothing here. A rank that throws alone leaves the others waiting for it; see fsdp::agree() in
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

#include "util/error.h"

namespace fsdp {

using util::Error;
using util::ErrorKind;
using util::fail;
using util::run_guarded;

}  // namespace fsdp
