#pragma once

// Modules: shared objects with code that few runs need, loaded at the first use. A module NAME exports
// fsdp_NAME_library(), which returns its interface, and fsdp_NAME_built_for(), whose text must be that of the
// program that loads it.

#include <string>

namespace fsdp::util {

struct ModuleRequest {
  std::string name;             ///< "mpi": the file is fsdp_mpi.so
  std::string feature;          ///< what needs the module: "comm.backend = \"mpi\""
  std::string remedy;           ///< what installs it: "install an MPI"
  bool global_symbols = false;  ///< whether libraries that are loaded later find the module's symbols
};

/// Loads a module and returns what fsdp_NAME_library() returns. The file is the one that the variable
/// FSDP_NAME_MODULE names, or is in ../lib/fsdp of the program's folder, or in the loader's path. Throws
/// Error(kUsage) if there is none, or one that was built for another version.
void* load_module(const ModuleRequest& request);

}  // namespace fsdp::util
