#pragma once

// Where the store of a run on one host listens.

#include <optional>
#include <string>

namespace fsdp::comm {

/// A socket bound to host:port, if the host is given as an IPv4 address of the loopback (127.0.0.0/8) and the
/// port is free; c10d's store can be told to listen there (TCPStoreOptions::masterListenFd) and owns it then.
///
/// Of itself it listens at all addresses of the host, IPv6 and IPv4 at once. So others can reach the store of
/// a run that is nobody else's business, and the peers' addresses are such (::ffff:127.0.0.1) as /etc/hosts
/// does not have: c10d asks the name server for the name of each, and where that does not answer, the run
/// starts 5 seconds later.
std::optional<int> bind_to_loopback(const std::string& host, int port);

}  // namespace fsdp::comm
