#pragma once

// ShmGroup: how the ranks of one group wait for each other in shared memory and notice missing ranks.
//
// meet() is a barrier that shows a Record of every rank to all others. Records, and the two halves of each
// rank's stage, are used alternately: the others read what a rank shows at meeting k between meetings k and k
// + 1, and the rank overwrites it only for meeting k + 2, after all have come to k + 1. So a collective that
// uses stages needs one meeting per piece, and none at its end.
//
// A group is used by one thread per rank. Different groups of a rank may be used by different threads.

#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "comm/api/group_failure.h"
#include "comm/shm/host_ranks.h"

namespace fsdp::comm {

class ShmGroup {
 public:
  /// Shown by a rank to the others at a meeting. Ranks with different op, numel, dtype or root are in
  /// different collectives, which is an error.
  struct Record {
    int32_t op = 0;
    int32_t dtype = 0;
    int64_t numel = 0;
    int64_t root = 0;
    int64_t offset = kNowhere;  ///< offset of this rank's data in its segment
    char unit[64] = {};         ///< described(), cut to fit; for messages

    bool same_collective(const Record& other) const {
      return op == other.op && dtype == other.dtype && numel == other.numel && root == other.root;
    }
  };
  static constexpr int64_t kNowhere = -1;

  /// Collective over the members: the first makes the control block, the others find it by `key`, which must
  /// be unique to this group in the run.
  static std::unique_ptr<ShmGroup> connect(std::shared_ptr<HostRanks> host, GroupIdentity identity,
                                           double timeout_seconds, const std::string& key);
  ~ShmGroup();
  ShmGroup(const ShmGroup&) = delete;
  ShmGroup& operator=(const ShmGroup&) = delete;

  const GroupIdentity& identity() const { return identity_; }
  const std::string& key() const { return key_; }
  const std::shared_ptr<HostRanks>& host() const { return host_; }
  double timeout_seconds() const { return timeout_seconds_; }
  /// Sets the time-out of later meetings; each rank has its own.
  void set_timeout(double seconds) { timeout_seconds_ = seconds; }

  /// Waits for all ranks. `what` names the collective in errors (described()). After a failure every later
  /// call throws the same error.
  void meet(const Record& record, const std::string& what);
  /// Makes ranks that wait for this one fail at once: it has failed elsewhere and comes to no more meetings.
  void abandon(bool timeout);
  /// A rank's record of the last meeting; valid until the next.
  const Record& record(int rank) const;
  /// A rank's segment at `offset`, as this process has it.
  const std::byte* memory_of(int rank, int64_t offset) const;

  /// Half of this rank's stage, of at least `bytes`, to be written before the next meeting.
  std::byte* stage(int64_t bytes);
  /// The offset of that half in this rank's segment.
  int64_t stage_offset() const;

 private:
  struct Member;
  struct Control;
  ShmGroup(std::shared_ptr<HostRanks> host, GroupIdentity identity, double timeout_seconds, std::string key);
  void make_control();
  void find_control();
  Member& member(int rank) const;
  void arrive(const std::string& what);
  void wait_for_round(uint32_t round, const std::string& what);
  std::vector<int> missing(uint32_t round, bool only_lost) const;
  void publish_failure(bool timeout);
  [[noreturn]] void give_up(const std::vector<int>& silent, bool timeout, const std::string& what);
  [[noreturn]] void follow_failure(const std::string& what);
  [[noreturn]] void fail(const std::vector<int>& silent, bool timeout, const std::string& cause,
                         const std::string& what);

  std::shared_ptr<HostRanks> host_;
  GroupIdentity identity_;
  double timeout_seconds_;
  std::string key_;
  uint64_t number_;  ///< hash of the key
  int spins_ = 0;    ///< checks of the round before sleeping
  Control* control_ = nullptr;
  std::unique_ptr<SharedSegment::Block> control_block_;  ///< on the first rank
  std::unique_ptr<SharedSegment::Block> stage_, former_stage_;
  int64_t stage_half_bytes_ = 0;
  uint32_t meetings_ = 0;
  std::exception_ptr failure_;  ///< the first
};

}  // namespace fsdp::comm
