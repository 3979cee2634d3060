#pragma once

// fsdp-train doctor --calibrate FILE: measures what fsdp-plan --simulate needs to know of this machine: how long
// kernels take, by class, and, where a launcher has started several ranks, latency and bandwidth between them. All ranks
// measure at the same time, as they compute in training. Takes about a minute.

#include <filesystem>
#include <string>

#include "comm/api/communicator.h"
#include "setup/config/config.h"
#include "tools/simulate/calibration.h"

namespace fsdp::doctor {

/// How ranks are on hosts, as launchers number them: neighbours are on one host.
struct RankPlaces {
  int local_world_size = 1;
};

/// Measures on the communicator's device, in the config's type of products, with the shapes of the config's products
/// beside those of a grid; of the network the levels that there are. Collective; the results of all ranks are those
/// of the first. Throws Error(kUsage) where the ranks of a host have more threads than cores. `links_only`: leaves out the
/// compute, so that ranks may be more than cores.
simulate::Calibration calibrate(const config::Config& config, comm::Communicator& communicator,
                                const RankPlaces& places, bool links_only = false);

/// Of this host, those that this process may use.
double usable_cores();

/// Links by backend, as a collective of each level has them.
simulate::NetworkTable measure_network(comm::Communicator& communicator, const RankPlaces& places);

/// Writes the calibration; links of other backends that the file has stay, and its compute if none was measured. Returns
/// what was measured, for people. Throws Error(kUsage) if there is neither.
std::string write_calibration(const std::filesystem::path& path, simulate::Calibration calibration);

}  // namespace fsdp::doctor
