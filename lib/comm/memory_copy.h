#pragma once

#include <cstdint>

namespace fsdp::comm {

/// Copies between memory that does not overlap. Large copies go around the cache, which they would only
/// empty; see kStreamedBytes in memory_copy.cpp.
void copy_memory(void* to, const void* from, int64_t bytes);

}  // namespace fsdp::comm
