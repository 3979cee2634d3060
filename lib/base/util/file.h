#pragma once

// Reading files, and writing them so that a reader never sees an incomplete one. Every failure is an
// Error(kIo) that names the path.

#include <filesystem>
#include <string>
#include <string_view>

namespace fsdp::util {

/// Reads a whole small file.
std::string read_file(const std::filesystem::path& path);

/// Whether the path exists. Throws if that is unknown, as in a folder that this user may not enter.
bool is_there(const std::filesystem::path& path);

/// Writes all of `content` to the open file, or throws an error that names `path`.
void write_all(int fd, std::string_view content, const std::filesystem::path& path);

/// Writes a temporary file in the same folder, syncs it, renames it to `path` and syncs the folder.
void write_file_atomically(const std::filesystem::path& path, std::string_view content);

/// Returns the path at which this process writes a file before renaming it to `path`.
std::filesystem::path temporary_name(const std::filesystem::path& path);

/// Whether a killed process left the file of this name: a temporary_name(), or a probe of
/// make_writable_folder().
bool is_temporary_name(std::string_view name);

/// Starts writing a file's data to disk. Only a hint: sync_path() waits for it and reports errors.
void start_writing_out(const std::filesystem::path& path);

/// Flushes a file or folder to disk.
void sync_path(const std::filesystem::path& path);

/// Renames, then syncs the folder of `to`.
void rename_and_sync(const std::filesystem::path& from, const std::filesystem::path& to);

/// Restricts the permissions of the files that this process creates from now on to an octal mode, "0600" to
/// "0666". Folders get x where they have r. The umask still applies.
void limit_permissions(const std::string& octal);

/// Creates the folder and its parents, and checks that files can be created in it.
void make_writable_folder(const std::filesystem::path& folder);

/// Returns the end of a message about `name`, a path that does not exist: how to download the model if `name`
/// can be one on the Hugging Face hub ("gpt2", "meta-llama/Llama-3.2-1B"), otherwise "".
std::string hub_remedy(const std::string& name);

}  // namespace fsdp::util
