#pragma once

#include <compare>
#include <cstdint>
#include <string>

namespace fsdp::comm {

/// Distinguishes hosts. Containers of one host that cannot see each other's processes or that have separate
/// network addresses count as separate hosts.
struct HostIdentity {
  std::string boot_id;            ///< /proc/sys/kernel/random/boot_id
  std::string pid_namespace;      ///< /proc/self/ns/pid
  std::string network_namespace;  ///< /proc/self/ns/net

  static HostIdentity read();
  auto operator<=>(const HostIdentity&) const = default;
};

/// A rank's host, and the memory that the rank offers to the other ranks there.
struct HostOptions {
  HostIdentity identity = HostIdentity::read();
  int64_t segment_bytes = 0;  ///< address space of each rank's segment; 0: twice the host's memory
};

}  // namespace fsdp::comm
