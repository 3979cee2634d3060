#pragma once

// Files written so that a reader never sees half of one. Every failure is an Error of kind kIo that names the
// path.

#include <filesystem>
#include <string>
#include <string_view>

namespace fsdp::util {

/// Reads a whole small file.
std::string read_file(const std::filesystem::path& path);

/// Writes `path` under a temporary name in the same folder, syncs it, renames it and syncs the folder.
void write_file_atomically(const std::filesystem::path& path, std::string_view content);

/// A name beside `path` for what is to be renamed to it.
std::filesystem::path temporary_name(const std::filesystem::path& path);

/// Whether a file of this name is what a killed process left under a temporary_name() or of
/// make_writable_folder().
bool is_temporary_name(std::string_view name);

/// Lets the system begin to write a file's data to the disk. Only a hint: nothing is on the disk for
/// certain before sync_path(), which also reports what went wrong.
void start_writing_out(const std::filesystem::path& path);

/// Flushes a file's (or a folder's) data to the disk.
void sync_path(const std::filesystem::path& path);

/// Renames and syncs the folder that holds the new name.
void rename_and_sync(const std::filesystem::path& from, const std::filesystem::path& to);

/// What files this process makes from now on may be read and written by: an octal mode of "0600" to "0666".
/// Folders get the right to enter for those who may read. The process's umask goes on taking rights away.
void limit_permissions(const std::string& octal);

/// Makes the folder and its parents and proves that files can be made in it; throws with the cause otherwise.
void make_writable_folder(const std::filesystem::path& folder);

}  // namespace fsdp::util
