#pragma once

#include <cstdint>

namespace fsdp::util {

/// Largest resident memory of this process so far, in bytes.
int64_t peak_resident_bytes();

/// Resident memory of this process now, in bytes.
int64_t resident_bytes();

}  // namespace fsdp::util
