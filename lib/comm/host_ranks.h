#pragma once

// HostRanks: what the ranks of one host know of each other: the shared memory of all, and who still runs.
// Ranks are numbered as the whole run numbers them.

#include <sys/types.h>

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "comm/launch_environment.h"
#include "comm/run_store.h"
#include "comm/shared_segment.h"

namespace fsdp::comm {

/// What tells hosts apart, and on one host containers that cannot see each other's processes or that have
/// addresses of their own: each of them counts as a host.
struct HostIdentity {
  std::string boot_id;            ///< /proc/sys/kernel/random/boot_id
  std::string pid_namespace;      ///< /proc/self/ns/pid
  std::string network_namespace;  ///< /proc/self/ns/net

  static HostIdentity read();
  bool operator==(const HostIdentity&) const = default;
};

class HostRanks {
 public:
  struct Options {
    HostIdentity identity = HostIdentity::read();
    int64_t segment_bytes = 0;  ///< address space of each rank's segment; 0: twice the host's memory
  };

  struct Meeting {
    std::shared_ptr<HostRanks> ranks;  ///< null where those of some host cannot share memory
    std::string obstacle;              ///< why not; the same text on all ranks
    std::string apart;                 ///< "ranks 0 and 2 are on different hosts"; empty: all are on one
  };

  /// Collective over the run: on every host all ranks map each other's memory, or on none.
  static Meeting meet(const LaunchEnvironment& environment, RunStore& store, const Options& options);

  ~HostRanks();

  int rank() const { return rank_; }
  /// The host of every rank of the run; hosts are numbered in the order of their first ranks.
  const std::vector<int>& hosts() const { return hosts_; }
  int host_size() const;
  const std::shared_ptr<SharedSegment>& own() const { return segments_[static_cast<size_t>(rank_)]; }
  /// Of a rank of this host, as all that follow.
  SharedSegment& of(int rank) const { return *segments_[static_cast<size_t>(rank)]; }

  /// Whether the rank can still answer: its process has not ended, and it has not destroyed its HostRanks.
  bool present(int rank) const;
  pid_t pid(int rank) const { return pids_[static_cast<size_t>(rank)]; }

  /// Where the control block lies that some rank makes for a group; `key` is the group's alone. The maker
  /// posts it in its own segment, where the others find it: nothing (-1) until then. Thread-safe.
  void post(uint64_t key, int64_t offset);
  int64_t posted(int maker, uint64_t key) const;
  void take_down(uint64_t key);
  /// Changes with every post; for futex_wait().
  std::atomic<uint32_t>& posts(int maker) const;

  /// Keeps `blocks` until `done` says that nobody reads them any more; looked at when more are kept.
  struct Retired {
    std::function<bool()> done;
    std::vector<std::unique_ptr<SharedSegment::Block>> blocks;
  };
  void keep_until_unused(Retired retired);

 private:
  struct Board;
  Board& board(int rank) const;

  int rank_ = 0;
  std::vector<int> hosts_;
  std::vector<std::shared_ptr<SharedSegment>> segments_;  ///< null: of a rank of another host
  std::vector<pid_t> pids_;
  std::vector<int> pid_fds_;  ///< -1: this process, or another host
  mutable std::mutex mutex_;
  std::vector<Retired> retired_;
};

}  // namespace fsdp::comm
