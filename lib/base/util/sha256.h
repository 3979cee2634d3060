#pragma once

// SHA-256 (FIPS 180-4) and HMAC with it (RFC 2104), by which a process proves that it knows a secret.

#include <string>
#include <string_view>

namespace fsdp::util {

/// Returns the digest in lower-case hexadecimal digits.
std::string sha256(std::string_view text);
std::string hmac_sha256(std::string_view key, std::string_view text);

/// Whether two texts are equal. Takes the same time wherever they differ.
bool same_secret(std::string_view a, std::string_view b);

}  // namespace fsdp::util
