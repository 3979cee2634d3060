#pragma once

// The secret by which the nodes of a run know each other, and how they prove to each other that they have it.
//
// Each side sends a number that is used once, and the HMAC of both numbers with the token as its key. The token itself
// is never sent, and neither proof serves for another connection, nor for the other side. The node proves first, so
// that whoever connects to the port gets nothing that depends on the token.

#include <optional>
#include <string>

#include "tools/launch/options.h"

namespace fsdp::launch {

/// The token protects the nodes of a run from strangers.
inline constexpr const char* kTokenVariable = "FSDP_LAUNCH_TOKEN";

/// The run's token: options.token; FSDP_LAUNCH_TOKEN; the content of options.token_file, or else of the user's own
/// token file, which nodes with a common home folder share. "" with options.trust_network. If the file is absent, the
/// host makes it with a random token, readable by the user alone; other nodes get nullopt. Throws Error(kUsage) for a
/// file that others may read, Error(kIo) for one that cannot be read or written.
std::optional<std::string> job_token(const RendezvousOptions& options, bool is_host);

/// The file of job_token().
std::string token_file(const RendezvousOptions& options);

/// 32 random hexadecimal digits: a token, or a number that is used once.
std::string new_secret();

/// The numbers that node and coordinator have sent each other.
struct Nonces {
  std::string node{}, coordinator{};
};
std::string proof_of_node(const std::string& token, const Nonces& nonces);
std::string proof_of_coordinator(const std::string& token, const Nonces& nonces);

}  // namespace fsdp::launch
