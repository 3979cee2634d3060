#pragma once

/// \file
/// Communication between the ranks of a run. A Communicator is one rank's endpoint of a group; all ranks of
/// the group must call its collectives in the same order. make_communicator() connects the processes that
/// fsdp-launch, torchrun, srun or mpirun has started; without a launcher the world size is 1.
/// run_ranks_as_threads() runs ranks as threads, for tests.
///
/// Collective: make_communicator(), agree() and all collectives of Communicator. read_launch_environment() is
/// not.
///
/// Errors: Error(kUsage) for an invalid environment or an unavailable backend, Error(kTimeout) if a rank
/// does not arrive within CommOptions::timeout_seconds, Error(kPeerLost) if a rank has exited.
///
/// Lifetime: every Work must be waited for; the tensors of a collective must not be accessed until then.
/// Engines and meshes share ownership of their communicator.
///
/// \code{.cpp}
/// double mean_over_ranks(double mine) {
///   auto communicator = fsdp::make_communicator(fsdp::read_launch_environment(), {.timeout_seconds = 120});
///   at::Tensor sum = at::full({1}, mine);                                // [1] float32, in place
///   communicator->all_reduce(sum, fsdp::ReduceOp::kSum, {})->wait();
///   return sum.item<double>() / communicator->world_size();
/// }
/// \endcode

#include "comm/api/communicator.h"
#include "comm/api/launch_environment.h"
#include "comm/backends/make_communicator.h"
#include "comm/options/options.h"
#include "comm/threads/thread_communicator.h"

namespace fsdp {

using comm::agree;
using comm::Backend;
using comm::CommOptions;
using comm::Communicator;
using comm::LaunchEnvironment;
using comm::make_communicator;
using comm::read_launch_environment;
using comm::ReduceOp;
using comm::run_ranks_as_threads;
using comm::Work;

}  // namespace fsdp
