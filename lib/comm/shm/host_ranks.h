#pragma once

// HostRanks: the shared memory of the ranks of one host, and which of these ranks still run. HostLayout:
// which ranks of a group share a host. Ranks are global ranks unless stated otherwise.

#include <sys/types.h>

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "comm/api/launch_environment.h"
#include "comm/api/run_store.h"
#include "comm/shm/shared_segment.h"

namespace fsdp::comm {

/// The hosts of all ranks of the run.
struct HostRoll {
  std::vector<int> hosts;  ///< host of every rank; hosts are numbered in the order of their first ranks
  std::string apart;       ///< "ranks 0 and 2 are on different hosts"; empty if all are on one
  std::string obstacle;    ///< first rank's obstacle, after "on rank 2 "; empty if no rank has one
};

/// Collective over the run, by combine_texts(): the bytes that a rank reads grow with the logarithm of the
/// world if each host has consecutive ranks, the same number each. `obstacle`: why this rank cannot share
/// memory; empty if it can.
HostRoll call_the_roll(const LaunchEnvironment& environment, RunStore& store, const HostIdentity& identity,
                       const std::string& obstacle);

class HostRanks {
 public:
  using Options = HostOptions;

  struct Meeting {
    std::shared_ptr<HostRanks> ranks;  ///< null if the ranks of any host cannot share memory
    std::string obstacle;              ///< the reason then; the same text on all ranks
    std::string apart;                 ///< HostRoll::apart
  };

  /// Makes the ranks of every host map each other's memory, or of none. Collective over the run.
  static Meeting meet(const LaunchEnvironment& environment, RunStore& store, const Options& options);

  ~HostRanks();

  int rank() const { return rank_; }
  /// The host of every rank of the run; hosts are numbered in the order of their first ranks.
  const std::vector<int>& hosts() const { return hosts_; }
  int host_size() const;
  const std::shared_ptr<SharedSegment>& own() const { return segments_[static_cast<size_t>(rank_)]; }
  // The following take a rank of this host.

  SharedSegment& of(int rank) const { return *segments_[static_cast<size_t>(rank)]; }

  /// Whether the rank can still answer: its process has not ended, and it has not destroyed its HostRanks.
  bool present(int rank) const;

  /// Posts the offset of a group's control block in this rank's segment, for the other ranks to find by
  /// `key`, which is unique to the group. posted() returns -1 until then. Thread-safe.
  void post(uint64_t key, int64_t offset);
  int64_t posted(int maker, uint64_t key) const;
  void take_down(uint64_t key);
  /// Changes with every post; for futex_wait().
  std::atomic<uint32_t>& posts(int maker) const;

  /// Blocks that are kept until `done` returns true: no rank reads them any more. Checked at every call.
  struct Retired {
    std::function<bool()> done;
    std::vector<std::unique_ptr<SharedSegment::Block>> blocks;
  };
  void keep_until_unused(Retired retired);

 private:
  struct Board;
  Board& board(int rank) const;
  static Meeting meet_here(const LaunchEnvironment& environment, RunStore& store, const Options& options);

  int rank_ = 0;
  std::vector<int> hosts_;
  std::vector<std::shared_ptr<SharedSegment>> segments_;  ///< null for a rank of another host
  /// -1 for this process and for processes on other hosts.
  std::vector<int> pid_fds_;
  mutable std::mutex mutex_;
  std::vector<Retired> retired_;
};

struct HostLayout {
  /// members[host]: the group's ranks there, ascending; hosts in the order of their first ranks.
  std::vector<std::vector<int>> members;

  int hosts() const { return static_cast<int>(members.size()); }
  /// Several hosts with several ranks each, the same number on all.
  bool even() const { return odd_one().empty(); }
  /// Whether any host has several ranks.
  bool shares_hosts() const;
  /// Why the layout is not even: "all ranks are on one host"; empty if it is.
  std::string odd_one() const;
};

/// The layout of a group of these global `ranks`; `hosts` gives the host of every rank of the run.
HostLayout host_layout(const std::vector<int>& hosts, const std::vector<int>& ranks);

/// "ranks 0 and 2 share a GPU (0000:1b:00.0)" for the first two that do; empty if no ranks share one. NCCL
/// refuses to connect ranks that share a GPU. `gpus`: "HOST BUS_ID" of every rank, where HOST is the
/// rank's host as NCCL sees it; a rank without a GPU has an empty BUS_ID.
std::string shared_gpu(const std::vector<std::string>& gpus);

}  // namespace fsdp::comm
