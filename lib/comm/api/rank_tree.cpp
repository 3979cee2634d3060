#include "comm/api/rank_tree.h"

#include <algorithm>

namespace fsdp::comm {

std::vector<std::vector<int>> RankTree::groups_of(int rank, int world_size) {
  std::vector<std::vector<int>> groups;
  for (int64_t step = 1; step == 1 || (step < world_size && rank % step == 0); step *= kFanIn) {
    std::vector<int>& group = groups.emplace_back();
    const int64_t begin = rank / (step * kFanIn) * (step * kFanIn);
    for (int64_t each = begin; each < std::min<int64_t>(begin + step * kFanIn, world_size); each += step) {
      group.push_back(static_cast<int>(each));
    }
  }
  return groups;
}

RankTree::RankTree(Communicator& communicator)
    : ranks_(groups_of(communicator.rank(), communicator.world_size())),
      world_size_(communicator.world_size()) {
  for (const auto& ranks : ranks_) groups_.push_back(communicator.host_group("tree", ranks));
}

std::string RankTree::reduce(std::string text, const Combine& combine, const CallSite& site) const {
  int64_t below = 1;  // number of ranks whose texts a member's text combines
  for (size_t level = 0; level < groups_.size(); ++level, below *= kFanIn) {
    const auto texts = all_gather_text(*groups_[level], text, site);
    if (groups_[level]->rank() != 0) break;
    const int64_t end = std::min<int64_t>(ranks_[level].back() + below, world_size_);
    text = combine(texts, ranks_[level].front(), static_cast<int>(end - 1));
  }
  return text;
}

}  // namespace fsdp::comm
