#include "model/parallel/attention_blocks.h"

#include <algorithm>
#include <limits>

namespace fsdp::parallel {
namespace {

/// The available keys in [begin, end), as one range of their tensor: between two runs there are no keys to
/// attend to, or the later run is not attended to.
struct Seen {
  int64_t key = 0, keys = 0;
  int64_t end = 0;  ///< position after the last key
};

Seen seen_keys(const std::vector<TokenRun>& keys, int64_t begin, int64_t end) {
  Seen seen;
  for (const TokenRun& run : keys) {
    const int64_t from = std::max(begin, run.position), to = std::min(end, run.position + run.length);
    if (from >= to) continue;
    if (seen.keys == 0) seen.key = run.index + from - run.position;
    seen.keys += to - from;
    seen.end = to;
  }
  return seen;
}

/// Adds the block of the queries at [begin, end) of a run, which attend to the keys from `first_key` on.
void add_block(std::vector<AttentionBlock>& blocks, const TokenRun& run, int64_t begin, int64_t end,
               int64_t first_key, const std::vector<TokenRun>& keys, int64_t row, int64_t rows) {
  const Seen seen = seen_keys(keys, first_key, end);
  if (seen.keys == 0) return;
  blocks.push_back({.row = row,
                    .rows = rows,
                    .query = run.index + begin - run.position,
                    .queries = end - begin,
                    .key = seen.key,
                    .keys = seen.keys,
                    .causal = seen.end == end});
}

}  // namespace

std::vector<AttentionBlock> attention_blocks(const std::vector<TokenRun>& queries,
                                             const std::vector<TokenRun>& keys, int64_t rows,
                                             const Documents* documents) {
  std::vector<AttentionBlock> blocks;
  for (const TokenRun& run : queries) {
    const int64_t run_end = run.position + run.length;
    if (documents == nullptr) {
      add_block(blocks, run, run.position, run_end, 0, keys, 0, rows);
      continue;
    }
    for (int64_t row = 0; row < rows; ++row) {
      const std::vector<int64_t>& starts = (*documents)[static_cast<size_t>(row)];
      for (size_t i = 0; i < starts.size(); ++i) {
        const int64_t next = i + 1 < starts.size() ? starts[i + 1] : std::numeric_limits<int64_t>::max();
        const int64_t begin = std::max(starts[i], run.position), end = std::min(next, run_end);
        if (begin < end) add_block(blocks, run, begin, end, starts[i], keys, row, 1);
      }
    }
  }
  return blocks;
}

}  // namespace fsdp::parallel
