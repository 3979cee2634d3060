#include "comm/group_identity.h"

#include <numeric>

#include "util/error.h"
#include "util/text.h"

namespace fsdp::comm {

std::string GroupIdentity::joined_ranks(const char* separator) const {
  std::vector<std::string> texts;
  for (int member : ranks) texts.push_back(std::to_string(member));
  return util::join(texts, separator);
}

std::string GroupIdentity::shown() const {
  if (name.empty()) return "";
  return util::concat(" (group ", name, ": ranks ", joined_ranks(", "), ")");
}

GroupIdentity GroupIdentity::subgroup(const std::string& its_name, const std::vector<int>& members) const {
  GroupIdentity group;
  group.name = name.empty() ? its_name : util::concat(name, "/", its_name);
  group.run_size = run_size;
  for (int member : members) {
    if (member == rank) group.rank = group.size();
    group.ranks.push_back(ranks[static_cast<size_t>(member)]);
  }
  return group;
}

GroupIdentity run_identity(const LaunchEnvironment& environment) {
  GroupIdentity group;
  group.rank = environment.rank;
  group.run_size = environment.world_size;
  group.ranks.resize(static_cast<size_t>(environment.world_size));
  std::iota(group.ranks.begin(), group.ranks.end(), 0);
  return group;
}

std::string described(const char* op, const CallSite& site) {
  return util::concat(op, " of ", site.unit, " (", site.pass, ")");
}

void fail_group(const GroupIdentity& group, const std::string& what, const GroupFailure& failure) {
  util::fail(failure.timeout ? util::ErrorKind::kTimeout : util::ErrorKind::kPeerLost, what,
             " failed on rank ", group.global_rank(), " of ", group.run_size, group.shown(), ": ",
             failure.timeout
                 ? util::concat("no result within ", failure.timeout_seconds, " s (comm.timeout_seconds)")
                 : std::string("a process of the run is gone"),
             failure.silent.empty() ? "" : "; ", failure.silent, " (", failure.cause, ")");
}

}  // namespace fsdp::comm
