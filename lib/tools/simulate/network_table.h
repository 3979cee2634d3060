#pragma once

// NetworkTable: what connects ranks, level by level, and presets of networks by name.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/util/enum_names.h"

namespace fsdp::simulate {

/// Where bytes travel; ranks of a slice (mesh.dcn) are closer than those of others.
enum class Level { kInside, kBetween, kSlices };
constexpr auto enum_names(Level) {
  return std::to_array<util::EnumName<Level>>({{Level::kInside, "inside a host"},
                                               {Level::kBetween, "between hosts"},
                                               {Level::kSlices, "between slices"}});
}

/// What a rank has of it while all ranks use it.
struct Link {
  double latency_seconds = 0;  ///< of one step of a collective
  /// Of one step of an all-reduce's ring, where receivers are ready before it begins; 0: the same.
  double ring_latency_seconds = 0;
  double latency_beside_compute =
      0;                        ///< in addition, while the rank's cores compute: its threads wait for one
  double bytes_per_second = 0;  ///< that the rank receives, while it sends as many; 0: there is no such link
  double core_seconds_per_byte = 0;  ///< of a core of the rank, to receive and send a byte
  /// Against the rate above, which a rank has while it waits: its threads are scheduled later beside others.
  double speed_beside_compute = 1;
};
/// Of Link::speed_beside_compute.
inline constexpr double kLeastSpeedBesideCompute = 0.5;

/// A rate of 0 takes no time.
inline double seconds_at_rate(double bytes, double bytes_per_second) {
  return bytes_per_second > 0 ? bytes / bytes_per_second : 0;
}

struct NetworkTable {
  std::string name = {};    ///< for people
  std::string source = {};  ///< "measured", or where the figures of a preset come from
  Link inside = {}, between = {}, slices = {};
  double base_seconds = 0;  ///< of each collective
  // Of one core of the rank, in collectives of host memory.
  double core_seconds = 0;  ///< that each takes from the compute beside it, whatever its size
  double copy_bytes_per_second = 0;
  double sum_bytes_per_second = 0;  ///< of the tensors that are added up

  const Link& at(Level level) const;
  double copy_seconds(double bytes) const { return seconds_at_rate(bytes, copy_bytes_per_second); }
  double sum_seconds(double bytes) const { return seconds_at_rate(bytes, sum_bytes_per_second); }
};

/// A network of GPUs' hosts, of which each GPU has one port.
struct NetworkPreset {
  std::string_view name;  ///< "ib-400"
  double gbps;            ///< of a GPU's port, each way
  double latency_seconds;
  std::string_view source;
};

const std::vector<NetworkPreset>& network_presets();
std::vector<std::string> network_names();
/// Throws Error(kUsage) for an unknown name.
const NetworkPreset& network_preset(const std::string& name);

/// The share of a port's rate, and of NVLink's, that NCCL's ring reaches by NCCL's own model (topo.h: NET_BW,
/// 12 GB/s of 100 Gbit/s; SM80_NVLINK_BW, 20 of 25 GB/s a link, and 20.6 of SM90).
inline constexpr double kNetworkShare = 0.96, kNvlinkShare = 0.8;
/// Of one step of NCCL's ring over NVLink, of one over a network, and of a collective (tuning.cc: hwLat and baseLat
/// of the protocol "Simple").
inline constexpr double kNvlinkLatency = 3.4e-6, kNetworkLatency = 14.0e-6, kCollectiveLatency = 8.4e-6;

}  // namespace fsdp::simulate
