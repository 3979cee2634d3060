#pragma once

/// \file
/// The ranks of a run and what they exchange. A Communicator is one rank's end of a group: its collectives
/// must be called by all ranks of the group in the same order. make_communicator() connects the processes
/// that fsdp-launch, torchrun, srun or mpirun has started; without a launcher it is a world of one.
/// run_ranks_as_threads() makes ranks of threads, for tests.
///
/// Collective: make_communicator(), agree() and every exchange of Communicator. read_launch_environment() is
/// not.
///
/// Errors: Error(kUsage) for an environment or a backend that cannot be had, Error(kTimeout) where a rank
/// does not come within CommOptions::timeout_seconds, Error(kPeerLost) where one is gone.
///
/// Lifetime: a Work must be waited for; the tensors of a collective must not be touched until then. A
/// communicator outlives the engines and meshes that are made of it, by shared ownership.
///
/// \code{.cpp}
/// double mean_over_ranks(double mine) {
///   auto communicator = fsdp::make_communicator(fsdp::read_launch_environment(), {.timeout_seconds = 120});
///   at::Tensor sum = at::full({1}, mine);                                // [1] float32, in place
///   communicator->all_reduce(sum, fsdp::ReduceOp::kSum, {})->wait();
///   return sum.item<double>() / communicator->world_size();
/// }
/// \endcode

#include "comm/communicator.h"
#include "comm/launch_environment.h"
#include "comm/make_communicator.h"
#include "comm/options.h"
#include "comm/thread_communicator.h"

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
