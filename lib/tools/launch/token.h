#pragma once

// The secret by which the nodes of a run recognise each other, and the proof that a node knows it.
//
// Each side sends a number that is used once, and the HMAC of both numbers with the token as its key. The
// token itself is never sent, and a proof is valid only for its connection and its side. The node proves
// first, so that a stranger who connects to the port gets nothing that depends on the token.

#include <optional>
#include <string>

#include "tools/launch/options.h"

namespace fsdp::launch {

/// The variable with the run's token.
inline constexpr const char* kTokenVariable = "FSDP_LAUNCH_TOKEN";

/// The run's token: the first of options.token, FSDP_LAUNCH_TOKEN, the content of options.token_file, and the
/// content of the user's own token file, which nodes with a common home folder share. "" with
/// options.trust_network. If the file is absent, the host makes it with a random token, readable by the user
/// alone, and other nodes get nothing. Throws Error(kUsage) for a file that others may read, Error(kIo) for a
/// file that cannot be read or written.
std::optional<std::string> job_token(const RendezvousOptions& options, bool is_host);

/// The file that job_token() reads.
std::string token_file(const RendezvousOptions& options);

/// A token, or a number that is used once: 32 random hexadecimal digits.
std::string new_secret();

/// The numbers that node and coordinator have sent each other.
struct Nonces {
  std::string node{}, coordinator{};
};
std::string proof_of_node(const std::string& token, const Nonces& nonces);
std::string proof_of_coordinator(const std::string& token, const Nonces& nonces);

}  // namespace fsdp::launch
