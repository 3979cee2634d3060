#pragma once

// Copies of large buffers that are not read soon, by stores that bypass the cache: an ordinary store first
// reads the memory that it overwrites.

#include <cstdint>

namespace fsdp::util {

/// Whether this CPU copies `bytes` faster past the cache than with memcpy(), which is so from 4 MiB on.
/// memcpy() itself bypasses the cache only above the size of the L3 cache, although all ranks of a host share
/// that cache.
bool is_written_past_cache(int64_t bytes);

/// Copies like memcpy(). Other threads may read the memory only after end_writes_past_cache().
void write_past_cache(void* to, const void* from, int64_t bytes);
void end_writes_past_cache();

}  // namespace fsdp::util
