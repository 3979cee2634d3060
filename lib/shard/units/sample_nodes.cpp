#include "shard/units/sample_nodes.h"

#include <algorithm>
#include <bit>

namespace fsdp::shard {

std::vector<SampleNode> nodes_of(int64_t first, int64_t count, int64_t most) {
  std::vector<SampleNode> nodes;
  for (const int64_t end = first + count; first < end;) {
    int level = 0;
    const auto fits = [&](int64_t leaves) {
      return leaves <= most && first % leaves == 0 && first + leaves <= end;
    };
    while (fits(int64_t{2} << level)) ++level;
    nodes.push_back({first, level});
    first += nodes.back().leaves();
  }
  return nodes;
}

int64_t most_leaves(int64_t ranks, int64_t first) {
  const auto bits = static_cast<uint64_t>(ranks);
  if (std::has_single_bit(bits) && first % ranks == 0) return ranks;
  return int64_t{2} << std::countr_zero(bits | static_cast<uint64_t>(first));
}

SampleRound sample_round(const SamplePlace& place, int64_t round) {
  const auto& [ranks, rank, replicas, own, ranks_in_pairs, replicas_in_pairs, span] = place;
  const int64_t first = span.first + round * replicas * ranks, most = ranks_in_pairs ? most_leaves(ranks) : 1,
                first_replica = first / ranks, present = std::min(replicas, (span.leaves - first) / ranks);
  const auto of_replica = [&](int64_t replica) { return nodes_of(first + replica * ranks, ranks, most); };
  SampleRound found{.leaf = first + own * ranks + rank,
                    .end = first + present * ranks,
                    .inside = of_replica(own),
                    .all = {},
                    .from = {}};
  if (replicas == 1) {
    found.all = found.inside;
    return found;
  }
  if (found.inside.size() == 1) {
    // A replica is a leaf of the sum over replicas.
    const int level = found.inside[0].level;
    for (const SampleNode& node :
         nodes_of(first_replica, present, replicas_in_pairs ? most_leaves(replicas, first_replica) : 1)) {
      found.all.push_back({node.first << level, node.level + level});
      found.from.push_back(found.all.back().has(found.leaf) ? 0 : SampleRound::kNone);
    }
    return found;
  }
  for (int64_t replica = 0; replica < present; ++replica) {
    int number = 0;
    for (const SampleNode& node : of_replica(replica)) {
      found.all.push_back(node);
      found.from.push_back(replica == own ? number++ : SampleRound::kNone);
    }
  }
  return found;
}

}  // namespace fsdp::shard
