#pragma once

// All output of the library: lines on stderr, written by spdlog. Messages are made printable()
// (base/util/text.h), so that text from files and users cannot control the terminal. Only log.cpp includes
// spdlog, whose copy of fmt clashes with libtorch's. Thread-safe.

#include <functional>
#include <string>
#include <string_view>

namespace fsdp::util {

/// Severity of a line, in ascending order. kOff turns logging off.
enum class LogLevel { kDebug, kInfo, kWarning, kError, kOff };

void log_debug(std::string_view message);
void log_info(std::string_view message);
void log_warning(std::string_view message);
void log_error(std::string_view message);

/// The least severe level that is logged. The default is that of the environment variable FSDP_LOG_LEVEL
/// (debug, info, warning, error, off), or kInfo.
void set_log_level(LogLevel level);

/// Whether lines on stderr begin with the wall-clock time (util::utc_text()). At first they do if the
/// environment variable FSDP_LOG_TIMESTAMPS is set and is neither 0 nor false.
void set_log_times(bool on);
/// Returns the beginning of a line on stderr: the time and a space, or nothing. For output beside the log.
std::string log_line_begin();

/// Sends every line to `sink` instead of stderr, for a program that embeds the library. Empty: stderr again.
void set_log_sink(std::function<void(LogLevel, std::string_view)> sink);

}  // namespace fsdp::util
