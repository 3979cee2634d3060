#pragma once

// fsdp-train doctor --calibrate FILE: measures this machine for fsdp-plan --simulate: the speed of each class
// of kernels and, if a launcher has started several ranks, latency and bandwidth between them. All ranks
// measure at the same time, because they also compute at the same time in training. Takes about a minute.

#include <filesystem>
#include <string>

#include "comm/api/communicator.h"
#include "setup/config/config.h"
#include "tools/simulate/calibration.h"

namespace fsdp::doctor {

/// The placement of ranks on hosts. Consecutive ranks are on one host, as launchers number them.
struct RankPlaces {
  int local_world_size = 1;
};

/// Measures compute on the communicator's device, in the config's type of products, for a grid of shapes and
/// the config's shapes, and the levels of the network that exist. With `links_only` it leaves out the
/// compute, so that there may be more ranks than cores. All ranks get rank 0's results. Collective. Throws
/// Error(kUsage) if the ranks of a host have more threads than cores.
simulate::Calibration calibrate(const config::Config& config, comm::Communicator& communicator,
                                const RankPlaces& places, bool links_only = false);

/// Number of cores of this host that this process may use.
double usable_cores();

/// Measures the links of each level of the network, keyed by backend.
simulate::NetworkTable measure_network(comm::Communicator& communicator, const RankPlaces& places);

/// Writes the calibration. Keeps the file's links of other backends, and its compute if none was measured.
/// Returns a summary for people. Throws Error(kUsage) if compute was neither measured nor in the file.
std::string write_calibration(const std::filesystem::path& path, simulate::Calibration calibration);

}  // namespace fsdp::doctor
