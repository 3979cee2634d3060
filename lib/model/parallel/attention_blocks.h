#pragma once

// Which blocks of causal attention a rank computes: queries of its chunks of a cut sequence, with keys that it
// has or that have come from other ranks. Needs no libtorch.

#include <array>
#include <cstdint>
#include <vector>

namespace fsdp::parallel {

/// For each row of a batch, where documents begin, ascending, 0 first.
using Documents = std::vector<std::vector<int64_t>>;

/// Tokens one after another: where they are in the sequence, and where in a tensor.
struct TokenRun {
  int64_t position = 0, length = 0, index = 0;
};

/// The queries [query, query + queries) of `rows` rows see the keys [key, key + keys): all of them or, `causal`,
/// those up to their own place, where the last query is the last key.
struct AttentionBlock {
  int64_t row = 0, rows = 1;
  int64_t query = 0, queries = 0;
  int64_t key = 0, keys = 0;
  bool causal = false;

  bool operator==(const AttentionBlock&) const = default;
};

/// The blocks of queries by keys. A run of keys lies before, after or in the same place as each run of queries,
/// or begins at 0 and includes it; runs of keys ascend, and follow each other in their tensor. With documents,
/// a token sees the keys of its own only.
std::vector<AttentionBlock> attention_blocks(const std::vector<TokenRun>& queries,
                                             const std::vector<TokenRun>& keys, int64_t rows,
                                             const Documents* documents);

}  // namespace fsdp::parallel
