#pragma once

#include <cstdint>

namespace fsdp::comm {

/// memcpy(), for the parts that an all-gather fetches: large ones are written around the cache, which they
/// would only empty. What was copied may be shown to others at once.
void copy_memory(void* to, const void* from, int64_t bytes);

/// Bytes that the copies and reductions of collectives in this process have read and written so far.
struct MovedBytes {
  int64_t read = 0, written = 0;
};
MovedBytes moved_bytes();
void count_moved(const MovedBytes& moved);

}  // namespace fsdp::comm
