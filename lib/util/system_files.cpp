#include "util/system_files.h"

#include <exception>
#include <fstream>

namespace fsdp::util {

std::optional<std::string> line_value(const std::filesystem::path& file, std::string_view name) {
  std::ifstream stream(file);
  for (std::string line; std::getline(stream, line);) {
    if (!line.starts_with(name)) continue;
    const size_t at = line.find_first_not_of(" \t", name.size());
    if (at == std::string::npos || line[at] != ':') continue;
    const size_t begin = line.find_first_not_of(" \t", at + 1);
    return begin == std::string::npos ? "" : line.substr(begin);
  }
  return std::nullopt;
}

std::optional<std::string> first_line(const std::filesystem::path& file) {
  std::ifstream stream(file);
  std::string line;
  if (!std::getline(stream, line)) return std::nullopt;
  return line;
}

std::optional<int64_t> kilobytes(const std::filesystem::path& file, std::string_view name) {
  const auto text = line_value(file, name);
  if (!text) return std::nullopt;
  try {
    return std::stoll(*text) * 1024;
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

}  // namespace fsdp::util
