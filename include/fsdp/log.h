#pragma once

/// \file
/// Where the library's messages go. Everything that it says is a line on stderr, or goes to a sink that the
/// embedding program sets; the environment variable FSDP_LOG_LEVEL (debug, info, warning, error, off) is the
/// first level. Thread-safe. Collective: nothing. Errors: none.
///
/// Lifetime: a sink is called until another is set, by any thread, one line at a time.
///
/// \code{.cpp}
/// void log_to(std::ofstream& file) {
///   fsdp::set_log_level(fsdp::LogLevel::kWarning);
///   fsdp::set_log_sink([&file](fsdp::LogLevel, std::string_view line) { file << line << std::endl; });
/// }
/// \endcode

#include "util/log.h"

namespace fsdp {

using util::LogLevel;
using util::set_log_level;
using util::set_log_sink;

}  // namespace fsdp
