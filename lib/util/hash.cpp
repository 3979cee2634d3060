#include "util/hash.h"

#include <xxhash.h>

namespace fsdp::util {

uint64_t xxh3_64(const void* data, size_t bytes) { return XXH3_64bits(data, bytes); }

}  // namespace fsdp::util
