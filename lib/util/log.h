#pragma once

// The one way by which the library speaks: lines on stderr, through spdlog. Thread-safe. What files and users
// put into a message cannot put anything into the terminal (see printable() in util/text.h).
// spdlog's headers (and its fmt) stay in log.cpp because they clash with the fmt that libtorch ships.

#include <functional>
#include <string>
#include <string_view>

namespace fsdp::util {

/// How severe a line is, least first; kOff is above all.
enum class LogLevel { kDebug, kInfo, kWarning, kError, kOff };

void log_debug(std::string_view message);
void log_info(std::string_view message);
void log_warning(std::string_view message);
void log_error(std::string_view message);

/// Least severe level that is written. The default is kInfo, or what the environment variable FSDP_LOG_LEVEL
/// (debug, info, warning, error, off) says.
void set_log_level(LogLevel level);

/// Sends every line to `sink` instead of stderr (a program that embeds the library; tests). Empty: stderr
/// again.
void set_log_sink(std::function<void(LogLevel, std::string_view)> sink);

}  // namespace fsdp::util
