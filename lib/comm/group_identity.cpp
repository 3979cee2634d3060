#include "comm/group_identity.h"

#include <numeric>

#include "util/text.h"

namespace fsdp::comm {

namespace {

std::string joined(const std::vector<int>& ranks, const char* separator) {
  std::vector<std::string> texts;
  for (int rank : ranks) texts.push_back(std::to_string(rank));
  return util::join(texts, separator);
}

}  // namespace

std::string GroupIdentity::joined_ranks(const char* separator) const { return joined(ranks, separator); }

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
  std::string text = util::concat(what, " failed on rank ", group.global_rank(), " of ", group.run_size,
                                  group.shown(), ": ");
  text += failure.timeout
              ? util::concat("no result within ", failure.timeout_seconds, " s (comm.timeout_seconds)")
              : std::string("a process of the run is gone");
  if (!failure.silent.empty()) {
    text += util::concat("; ", failure.silent);
  } else if (!failure.silent_ranks.empty()) {
    text += util::concat("; no answer from rank ", joined(failure.silent_ranks, ", "));
  }
  throw GroupError(util::concat(text, " (", failure.cause, ")"), failure);
}

GroupError::GroupError(const std::string& message, GroupFailure failure)
    : Error(failure.timeout ? util::ErrorKind::kTimeout : util::ErrorKind::kPeerLost, message),
      failure_(std::move(failure)) {}

}  // namespace fsdp::comm
