#pragma once

#include <unistd.h>

#include <filesystem>
#include <string>

namespace fsdp::testing {

/// While one lives, this process cannot write into the folder, even as root: util::make_writable_folder()
/// finds a folder where it makes a file to try.
class BlockedFolder {
 public:
  explicit BlockedFolder(const std::filesystem::path& folder)
      : probe_(folder / (".probe-" + std::to_string(::getpid()))) {
    std::filesystem::create_directories(probe_ / "in the way");
  }
  ~BlockedFolder() { std::filesystem::remove_all(probe_); }
  BlockedFolder(const BlockedFolder&) = delete;
  BlockedFolder& operator=(const BlockedFolder&) = delete;

 private:
  std::filesystem::path probe_;
};

}  // namespace fsdp::testing
