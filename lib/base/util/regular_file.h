#pragma once

// Files in folders that may be untrusted. Only regular files are opened and only new files are created. No
// function waits for a pipe or follows a symbolic link to another file of the user's.

#include <cstddef>
#include <filesystem>
#include <functional>
#include <string>

namespace fsdp::util {

/// A regular file opened for reading, or the reason why there is none. The caller closes the descriptor.
struct OpenedFile {
  int fd = -1;
  int error = 0;                ///< errno of open()
  const char* found = nullptr;  ///< kind of the thing found instead of a file: "a folder", "a device or pipe"
};

/// Opens a file for reading. Does not block, as a named pipe in place of the file otherwise would.
OpenedFile open_regular(const std::filesystem::path& path);

/// Returns the first bytes of a file, at most `most_bytes`; "" if there is no regular file.
std::string read_beginning(const std::filesystem::path& path, size_t most_bytes);

/// Calls visit(line) for each line of a regular file, without its line end. A line longer than
/// `longest_bytes` is cut to that length.
void read_lines(const std::filesystem::path& path, size_t longest_bytes,
                const std::function<void(const std::string& line)>& visit);

/// Creates a file under a name that no other process uses, and opens it for reading and writing. The caller
/// closes the descriptor. Replaces a file that a killed process has left under that name, and never follows a
/// symbolic link. Returns -1 and sets errno if it fails.
int create_own_file(const std::filesystem::path& path);

}  // namespace fsdp::util
