#pragma once

// The identity of a group of ranks, and its failures: one wording for all backends, and one cause on all
// ranks although each rank sees a different part of the failure.

#include <chrono>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/util/error.h"
#include "comm/api/communicator.h"
#include "comm/api/launch_environment.h"
#include "comm/api/run_store.h"

namespace fsdp::comm {

struct GroupIdentity {
  std::string name;        ///< name of a subgroup, "data/rows" if nested; empty: the whole run
  std::vector<int> ranks;  ///< global ranks of the members
  int rank = 0;            ///< number of this rank in the group
  int run_size = 1;        ///< number of ranks in the run
  std::function<bool()> is_broken_off = nullptr;  ///< LaunchEnvironment::is_broken_off
  /// The option that sets the group's time-out, for messages.
  const char* timeout_source = "comm.timeout_seconds";

  int size() const { return static_cast<int>(ranks.size()); }
  int global_rank() const { return ranks[static_cast<size_t>(rank)]; }
  /// "0-2-4"; for many ranks a hash. Groups of different ranks have different keys.
  std::string key() const;
  /// " (group data: ranks 0, 1)" for a subgroup, with at most ten ranks; empty for the whole run.
  std::string shown() const;
  /// The subgroup `name` of `members`, which are ranks of this group and include this rank.
  GroupIdentity subgroup(const std::string& name, const std::vector<int>& members) const;
};

/// The numbers as texts.
std::vector<std::string> texts_of(const std::vector<int>& ranks);

/// Keys of a group's subgroups in the run. Several subgroups may have one name, and even the same ranks.
class SubgroupKeys {
 public:
  /// `key` is that of the group itself, unique in the run.
  explicit SubgroupKeys(std::string key) : key_(std::move(key)) {}

  const std::string& of_group() const { return key_; }
  /// The key of the next subgroup with this name and these ranks; the same on all its ranks, unique in the
  /// run.
  std::string next(const std::string& name, const GroupIdentity& subgroup);

 private:
  const std::string key_;
  std::map<std::string, int> made_;
};

/// The group of all ranks of the run.
GroupIdentity run_identity(const LaunchEnvironment& environment);

/// "all_gather of model.layers.1 (forward)".
std::string described(const char* op, const CallSite& site);

struct GroupFailure {
  bool timeout = false;             ///< the time is up, but no rank is known to be lost
  double timeout_seconds = 0;       ///< comm.timeout_seconds
  std::vector<int> silent_ranks{};  ///< global ranks that did not answer, as far as known
  std::string silent{};             ///< replaces silent_ranks: "no answer from rank 0, which hosts the store"
  std::string cause{};
};

/// A failure of a group, kTimeout or kPeerLost.
class GroupError : public util::Error {
 public:
  GroupError(const std::string& message, GroupFailure failure);
  const GroupFailure& failure() const { return failure_; }

 private:
  GroupFailure failure_;
};

/// Throws the GroupError for the operation `what`.
[[noreturn]] void fail_group(const GroupIdentity& group, const std::string& what,
                             const GroupFailure& failure);

/// The view that one rank has of a failure.
struct FailureSight {
  bool timeout = false;
  /// Whether the rank knows only that a connection was closed. Another rank may report the reason: gloo
  /// closes all connections of a rank whose time is up.
  bool closed = false;
  std::string what{};         ///< the collective in progress, described()
  std::string cause{};        ///< one line
  std::vector<int> silent{};  ///< known global ranks for which the rank waited in vain
};

/// Combines the sights of all ranks of a failed group through the run's store; the result is for
/// fail_group(). The first rank to report decides whether the failure was a time-out; a rank that has only
/// seen a connection closed waits half a second for an earlier report. Silent ranks are those for which
/// others waited and that reported nothing; if there are none, those without a report within two seconds.
/// `timeout` is the limit that the failed operation had.
///
/// `prefix` in the store must be unique to the group. `reported` is called once the first report is in the
/// store, or the store has not answered in time: from then on this rank may let the others notice the
/// failure. Takes up to 3.5 seconds.
GroupFailure share_failure(const RunStore& store, const std::string& prefix, const GroupIdentity& group,
                           const FailureSight& sight, const std::function<void()>& reported,
                           std::chrono::milliseconds timeout = {});

/// Key of the first report in the store; it exists once a rank of the group has failed.
std::string failure_key(const std::string& prefix);

}  // namespace fsdp::comm
