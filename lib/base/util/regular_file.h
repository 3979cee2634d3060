#pragma once

// Files in folders that may come from others: what is opened is a regular file, what is created is new, and neither waits
// for a pipe nor follows a symbolic link to a file of the user's.

#include <cstddef>
#include <filesystem>
#include <functional>
#include <string>

namespace fsdp::util {

/// A regular file that has been opened for reading, or why there is none. The caller closes the descriptor.
struct OpenedFile {
  int fd = -1;
  int error = 0;                ///< errno of opening it
  const char* found = nullptr;  ///< what is there instead of a file: "a folder", "a device or pipe"
};

/// Opens a file for reading without waiting. Files in folders from others are opened with this: a named pipe in place of
/// a file would block the program for ever.
OpenedFile open_regular(const std::filesystem::path& path);

/// The first bytes of a file, at most `most_bytes`; empty where there is no regular file.
std::string read_beginning(const std::filesystem::path& path, size_t most_bytes);

/// Calls visit(line) for each line of a regular file, without its end. Of a line beyond `longest_bytes`, passes so many bytes.
void read_lines(const std::filesystem::path& path, size_t longest_bytes,
                const std::function<void(const std::string& line)>& visit);

/// Creates a file of a name that no other process uses, and opens it for reading and writing; the caller closes the
/// descriptor. Replaces what a killed process has left under the name, and never follows a symbolic link. Returns -1 and
/// sets errno if it fails.
int create_own_file(const std::filesystem::path& path);

}  // namespace fsdp::util
