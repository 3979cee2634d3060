#pragma once

#include <cstdint>

namespace fsdp::util {

/// Largest resident memory of this process so far, in bytes.
int64_t peak_resident_bytes();

/// Resident memory of this process now, in bytes.
int64_t resident_bytes();

/// Pages that the kernel gave this process's memory so far, without reading them from a disk. A step that
/// reuses its memory causes none.
int64_t minor_faults();

}  // namespace fsdp::util
