#pragma once

// The blocks of causal attention that a rank computes: queries of its chunks of a cut sequence, with keys of
// its own or received from other ranks.

#include <cstdint>
#include <vector>

namespace fsdp::parallel {

/// Positions at which documents begin, for each row of a batch, ascending, 0 first.
using Documents = std::vector<std::vector<int64_t>>;

/// Consecutive tokens: their position in the sequence, and their index in a tensor.
struct TokenRun {
  int64_t position = 0, length = 0, index = 0;
};

/// The queries [query, query + queries) of `rows` rows attend to the keys [key, key + keys): to all of them
/// or, if `causal`, to those up to their own position, where the last query is the last key.
struct AttentionBlock {
  int64_t row = 0, rows = 1;
  int64_t query = 0, queries = 0;
  int64_t key = 0, keys = 0;
  bool causal = false;

  bool operator==(const AttentionBlock&) const = default;
};

/// Returns the blocks of queries by keys. Each run of keys is before, after or at the same position as each
/// run of queries, or begins at 0 and includes it. Runs of keys ascend, and are consecutive in their tensor.
/// With documents, a token attends only to keys of its own document.
std::vector<AttentionBlock> attention_blocks(const std::vector<TokenRun>& queries,
                                             const std::vector<TokenRun>& keys, int64_t rows,
                                             const Documents* documents);

}  // namespace fsdp::parallel
