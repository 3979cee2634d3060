#pragma once

#include <string>

namespace fsdp::cli {

/// What --version prints: the program's version with the commit that it was built from, if that is known;
/// libtorch; CUDA and NCCL if it was built with them.
std::string version_text(const std::string& program);

/// Its parts. Empty: unknown, or not built with it.
std::string commit();  ///< abbreviated, with "-dirty" behind it if files were changed
std::string libtorch_version();
std::string cuda_version();
std::string nccl_version();

}  // namespace fsdp::cli
