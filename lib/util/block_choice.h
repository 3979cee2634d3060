#pragma once

// Which block of a pool serves a request. The rule of shard::BufferPool and of util::MappedAllocator; on
// sizes alone, so that a plan can follow it (train/unit_memory.h).

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace fsdp::util {

struct BlockChoice {
  std::optional<size_t> reuse;  ///< place of the waiting block to take; nothing: a new one of the size asked
  size_t give_up = 0;           ///< so many waiting blocks, from the first on, are given back before that
};

/// `waiting`: sizes of the blocks that nobody uses. `held`: bytes of all blocks. `most`: what all of them may
/// take, such as the most bytes that were ever in use at once, this request included. Where a new block would
/// be beyond that, one of up to `largest_reuse` times the size asked for is taken before others are given up.
BlockChoice choose_block(const std::vector<int64_t>& waiting, int64_t nbytes, int64_t held, int64_t most,
                         int64_t largest_reuse = 1);

}  // namespace fsdp::util
