#pragma once

// The run's store over MPI: rank 0 keeps the entries, and a thread there answers the others.

#include <chrono>

#include "comm/api/run_store.h"
#include "comm/mpi/mpi_library.h"

namespace fsdp::comm {

/// `group` has all ranks and is used for nothing else. Rank 0 answers until the process ends. Not collective.
RunStore make_mpi_store(MpiLibrary& library, MpiLibrary::Group group, const MpiLibrary::World& world,
                        std::chrono::milliseconds timeout);

}  // namespace fsdp::comm
