#pragma once

// What the ranks of a group tell each other through the run's store once the group has failed, so that all
// give one cause and name the same ranks, although each has seen something else.

#include <functional>
#include <string>
#include <vector>

#include "comm/group_identity.h"
#include "comm/run_store.h"

namespace fsdp::comm {

/// What one rank has seen.
struct FailureSight {
  bool timeout = false;
  /// All that it knows is that a connection was closed, perhaps by a rank that had a reason: whose time was
  /// up, for instance, since gloo then closes what connects it with all others.
  bool closed = false;
  std::string what{};         ///< the collective that it was in, described()
  std::string cause{};        ///< one line
  std::vector<int> silent{};  ///< ranks of the run for which it has waited in vain, as far as it knows
};

/// What all together know; throw it with fail_group(). The first rank that has seen something says whether it
/// was a time-out; one that has only seen a connection closed leaves half a second to who closed it. A rank
/// is silent that others have waited for and that has seen no failure itself, or,
/// where none is known, one that says nothing within two seconds.
///
/// `prefix` in the store is the group's alone. `told` is called once the first sight is in the store, or the
/// store has not answered in time: from then on this rank may let the others notice. Takes up to three
/// seconds, and that half.
GroupFailure share_failure(const RunStore& store, const std::string& prefix, const GroupIdentity& group,
                           const FailureSight& sight, const std::function<void()>& told);

/// The key under which the group's first sight is in the store, so that a rank may look whether there is one.
std::string failure_key(const std::string& prefix);

}  // namespace fsdp::comm
