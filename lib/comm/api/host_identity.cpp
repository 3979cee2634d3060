#include "comm/api/host_identity.h"

#include <unistd.h>

#include <fstream>

namespace fsdp::comm {
namespace {

/// The target of a link in /proc/self/ns.
std::string namespace_of(const char* path) {
  char text[64];
  const ssize_t length = ::readlink(path, text, sizeof(text));
  return length > 0 ? std::string(text, static_cast<size_t>(length)) : std::string();
}

}  // namespace

HostIdentity HostIdentity::read() {
  HostIdentity identity;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> identity.boot_id;
  identity.pid_namespace = namespace_of("/proc/self/ns/pid");
  identity.network_namespace = namespace_of("/proc/self/ns/net");
  return identity;
}

}  // namespace fsdp::comm
