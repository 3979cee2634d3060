#pragma once

// What the kernel tells in files of lines, as in /proc and /sys.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace fsdp::util {

/// What follows the first "NAME", blanks and ":" in a file of lines, as /proc has them; nothing where there
/// is none.
std::optional<std::string> line_value(const std::filesystem::path& file, std::string_view name);

/// The first line of a file; nothing where there is no such file.
std::optional<std::string> first_line(const std::filesystem::path& file);

/// Bytes of "MemTotal:  1024 kB".
std::optional<int64_t> kilobytes(const std::filesystem::path& file, std::string_view name);

}  // namespace fsdp::util
