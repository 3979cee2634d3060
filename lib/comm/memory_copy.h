#pragma once

#include <cstdint>

namespace fsdp::comm {

/// memcpy(), for the parts that an all-gather fetches: large ones are written around the cache, which they
/// would only empty. What was copied may be shown to others at once.
void copy_memory(void* to, const void* from, int64_t bytes);

}  // namespace fsdp::comm
