#pragma once

// Who a group of ranks is, and how its failures are told: in one wording, whatever the backend.

#include <string>
#include <vector>

#include "comm/communicator.h"
#include "comm/launch_environment.h"
#include "util/error.h"

namespace fsdp::comm {

struct GroupIdentity {
  std::string name;        ///< of a subgroup, "data/rows" inside another; empty: the whole run
  std::vector<int> ranks;  ///< numbers in the whole run
  int rank = 0;            ///< of this one, in the group
  int run_size = 1;        ///< ranks of the whole run

  int size() const { return static_cast<int>(ranks.size()); }
  int global_rank() const { return ranks[static_cast<size_t>(rank)]; }
  /// "0-2-4".
  std::string joined_ranks(const char* separator = "-") const;
  /// Empty for the whole run, " (group data: ranks 0, 1)" for a subgroup.
  std::string shown() const;
  /// Of those `members` (ranks of this group, this one among them), called `name` there.
  GroupIdentity subgroup(const std::string& name, const std::vector<int>& members) const;
};

/// The whole run.
GroupIdentity run_identity(const LaunchEnvironment& environment);

/// "all_gather of model.layers.1 (forward)".
std::string described(const char* op, const CallSite& site);

struct GroupFailure {
  bool timeout = false;             ///< nobody is known to be gone, but the time is up
  double timeout_seconds = 0;       ///< comm.timeout_seconds
  std::vector<int> silent_ranks{};  ///< ranks of the run that did not answer, as far as known
  std::string silent{};             ///< in their stead, "no answer from rank 0, which hosts the store"
  std::string cause{};              ///< what was seen
};

/// A failure of a group, kTimeout or kPeerLost.
class GroupError : public util::Error {
 public:
  GroupError(const std::string& message, GroupFailure failure);
  const GroupFailure& failure() const { return failure_; }

 private:
  GroupFailure failure_;
};

/// Throws the GroupError that tells this failure of `what`.
[[noreturn]] void fail_group(const GroupIdentity& group, const std::string& what,
                             const GroupFailure& failure);

}  // namespace fsdp::comm
