#include "comm/host_layout.h"

#include <map>

#include "util/error.h"

namespace fsdp::comm {

std::string HostLayout::odd_one() const {
  if (members.size() == 1) return "all ranks are on one host";
  const size_t each = members.front().size();
  for (const std::vector<int>& ranks : members) {
    if (ranks.size() == each) continue;
    return util::concat("hosts have different numbers of ranks, that of rank ", members.front().front(),
                        " has ", each, " and that of rank ", ranks.front(), " has ", ranks.size());
  }
  return each == 1 ? "every rank has a host to itself" : "";
}

HostLayout host_layout(const std::vector<int>& hosts, const std::vector<int>& ranks) {
  HostLayout layout;
  std::map<int, size_t> place;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    const int host = hosts[static_cast<size_t>(ranks[rank])];
    const auto [found, first] = place.try_emplace(host, layout.members.size());
    if (first) layout.members.emplace_back();
    layout.members[found->second].push_back(static_cast<int>(rank));
  }
  return layout;
}

}  // namespace fsdp::comm
