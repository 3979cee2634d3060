#pragma once

// Which ranks of a group share a host.

#include <string>
#include <vector>

namespace fsdp::comm {

struct HostLayout {
  /// members[host]: ranks of the group, ascending; hosts in the order of their first ranks.
  std::vector<std::vector<int>> members;

  int hosts() const { return static_cast<int>(members.size()); }
  /// Several hosts with several ranks each, the same number on all.
  bool even() const { return odd_one().empty(); }
  /// What there is instead: "all ranks are on one host"; empty where it is even.
  std::string odd_one() const;
};

/// Of the `ranks` of a group; `hosts` has the host of every rank of the run, as `ranks` number them.
HostLayout host_layout(const std::vector<int>& hosts, const std::vector<int>& ranks);

}  // namespace fsdp::comm
