#pragma once

// The simulation of a step: discrete events over the program of a step (tools/simulate/step_program.h).
//
// A rank computes in one stream and communicates in one stream per queue of the engine (gather_queue() in
// shard/units/group_sizes.h). A collective begins when all ranks have issued it, the collectives before it in
// its queue have ended and, for a reduction over replicas, its first part has; then it passes its stages
// (tools/simulate/collective_cost.h). Compute continues when the collectives that it waits for have ended.
// Whatever runs at the same time shares links and, on CPUs, the cores of the host
// (tools/simulate/shared_resources.h).
//
// All ranks have the same program, so ranks that are alike are simulated as one: a world of ten thousand
// ranks takes no longer than one of two. Ranks that compute more slowly are another kind.

#include <array>
#include <map>
#include <string>
#include <vector>

#include "comm/events/trace_event.h"
#include "shard/units/unit_sizes.h"
#include "tools/simulate/cluster.h"
#include "tools/simulate/step_program.h"

namespace fsdp::simulate {

struct StepOptions {
  /// Factor on the compute of each kind of ranks. The first kind is reported.
  std::vector<double> slowness = {1};
  bool reduce_scatter_group = false;
  bool records = false;  ///< whether StepTimes::events is filled
};

/// The reason why a rank waits.
enum class Obstacle { kLatency, kInside, kBetween, kSlices, kCores, kHost, kOtherRanks };
inline constexpr size_t kObstacles = 7;
constexpr auto enum_names(Obstacle) {
  return std::to_array<util::EnumName<Obstacle>>({{Obstacle::kLatency, "latency"},
                                                  {Obstacle::kInside, "links inside a host"},
                                                  {Obstacle::kBetween, "links between hosts"},
                                                  {Obstacle::kSlices, "links between slices"},
                                                  {Obstacle::kCores, "cores that copy and add"},
                                                  {Obstacle::kHost, "links to host memory"},
                                                  {Obstacle::kOtherRanks, "slower ranks"}});
}

/// Seconds of a step of the first kind of ranks.
struct StepTimes {
  double step = 0;
  double computing = 0;                           ///< including slowdown by communication
  double communication = 0;                       ///< sum over all collectives, from begin to end
  double copies = 0;                              ///< sum over all copies to and from host memory
  double exposed = 0;                             ///< time for which the rank waited
  double bytes_from_other_hosts = 0;              ///< bytes that each host receives from the others
  std::map<std::string, double> exposed_by_kind;  ///< "all-gathers in forward"
  std::array<double, kObstacles> exposed_by_obstacle{};

  std::vector<comm::TraceEvent> events;  ///< events of one micro-batch of each kind
};

/// Requires: `units` are the program's.
StepTimes simulate_step(const StepProgram& program, const plan::Units& units, const Cluster& cluster,
                        const StepOptions& options = {});

}  // namespace fsdp::simulate
