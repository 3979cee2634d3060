#pragma once

/// \file
/// Logging. Each message of the library is a line on stderr, or is passed to a sink that the embedding
/// program sets. The environment variable FSDP_LOG_LEVEL (debug, info, warning, error, off) sets the initial
/// level; with FSDP_LOG_TIMESTAMPS=1, lines on stderr begin with the time in UTC. Thread-safe. Collective:
/// nothing. Errors: none.
///
/// Lifetime: a sink is used until another is set; any thread may call it, one line at a time.
///
/// \code{.cpp}
/// void log_to(std::ofstream& file) {
///   fsdp::set_log_level(fsdp::LogLevel::kWarning);
///   fsdp::set_log_sink([&file](fsdp::LogLevel, std::string_view line) { file << line << std::endl; });
/// }
/// \endcode

#include "base/util/log.h"

namespace fsdp {

using util::LogLevel;
using util::set_log_level;
using util::set_log_sink;

}  // namespace fsdp
