#pragma once

// The programs that tests start: those of the same build.

#include <filesystem>
#include <string>

namespace fsdp::testing {

/// Where the program `name` lies: beside the test that asks. No path is compiled in, so that builds in other
/// folders share what is compiled.
inline std::string program_path(const std::string& name) {
  return (std::filesystem::read_symlink("/proc/self/exe").parent_path() / name).string();
}

}  // namespace fsdp::testing
