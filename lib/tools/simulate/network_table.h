#pragma once

// NetworkTable: the links between ranks, level by level, and presets of networks by name.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/util/enum_names.h"

namespace fsdp::simulate {

/// Levels on which bytes travel. Ranks of a slice (mesh.dcn) are closer to each other than to other ranks.
enum class Level { kInside, kBetween, kSlices };
constexpr auto enum_names(Level) {
  return std::to_array<util::EnumName<Level>>({{Level::kInside, "inside a host"},
                                               {Level::kBetween, "between hosts"},
                                               {Level::kSlices, "between slices"}});
}

/// A rank's share of a link while all ranks use it.
struct Link {
  double latency_seconds = 0;  ///< latency of one step of a collective
  /// Latency of one step of an all-reduce's ring, whose receivers are ready before it begins; 0:
  /// latency_seconds.
  double ring_latency_seconds = 0;
  /// Further latency while the rank's cores compute, because its threads wait for a core.
  double latency_beside_compute = 0;
  /// Rate at which the rank receives while it sends as much; 0: there is no such link.
  double bytes_per_second = 0;
  double core_seconds_per_byte = 0;  ///< time of one of the rank's cores to receive and send a byte
  /// Factor on the rate while the rank computes: its threads are scheduled later than when it waits.
  double speed_beside_compute = 1;
};
/// Lower bound of Link::speed_beside_compute.
inline constexpr double kLeastSpeedBesideCompute = 0.5;

/// Seconds of `bytes` at a rate; 0 if the rate is 0.
inline double seconds_at_rate(double bytes, double bytes_per_second) {
  return bytes_per_second > 0 ? bytes / bytes_per_second : 0;
}

struct NetworkTable {
  std::string name = {};    ///< text for people
  std::string source = {};  ///< "measured", or where the figures of a preset come from
  Link inside = {}, between = {}, slices = {};
  double base_seconds = 0;  ///< fixed time of each collective
  // Of one core of the rank, in collectives of host memory.
  double core_seconds = 0;  ///< time that each collective takes from the compute beside it, at any size
  double copy_bytes_per_second = 0;
  double sum_bytes_per_second = 0;  ///< rate of adding up tensors
  /// Rates of the codes of quantized links, by the bytes of fp32 numbers.
  double encode_bytes_per_second = 0, decode_bytes_per_second = 0;
  /// Rate of copies between a device and the memory of its host; 0: they take no time.
  double host_bytes_per_second = 0;

  const Link& at(Level level) const;
  double copy_seconds(double bytes) const { return seconds_at_rate(bytes, copy_bytes_per_second); }
  double sum_seconds(double bytes) const { return seconds_at_rate(bytes, sum_bytes_per_second); }
  double encode_seconds(double bytes) const { return seconds_at_rate(bytes, encode_bytes_per_second); }
  double decode_seconds(double bytes) const { return seconds_at_rate(bytes, decode_bytes_per_second); }
};

/// A network of hosts in which each GPU has one port, or each host.
struct NetworkPreset {
  std::string_view name;  ///< "ib-400"
  double gbps;            ///< rate of a port, each way
  double latency_seconds;
  std::string_view source;
  bool is_of_host = false;  ///< whether the ranks of a host share one port

  /// Rate of each of so many ranks on a host.
  double gbps_of_rank(int64_t ranks_of_host) const {
    return is_of_host && ranks_of_host > 1 ? gbps / static_cast<double>(ranks_of_host) : gbps;
  }
};

const std::vector<NetworkPreset>& network_presets();
std::vector<std::string> network_names();
/// Throws Error(kUsage) for an unknown name.
const NetworkPreset& network_preset(const std::string& name);

/// Share of a port's rate, and of NVLink's, that NCCL's ring reaches by NCCL's own model (topo.h: NET_BW, 12
/// GB/s of 100 Gbit/s; SM80_NVLINK_BW, 20 of 25 GB/s a link, and 20.6 of SM90).
inline constexpr double kNetworkShare = 0.96, kNvlinkShare = 0.8;
/// Latencies of a step of NCCL's ring over NVLink, of a step over a network, and of a collective (tuning.cc:
/// hwLat and baseLat of the protocol "Simple").
inline constexpr double kNvlinkLatency = 3.4e-6, kNetworkLatency = 14.0e-6, kCollectiveLatency = 8.4e-6;

}  // namespace fsdp::simulate
