#pragma once

// Collectives over the system's MPI (mpi_run.h), complete at the call. Each begins with a message to every
// rank that takes part, which names the collective; data follows once all have arrived. So ranks in different
// collectives are told apart before data is mixed up, a time-out knows for whom it waits, and from then on
// the transfer has the processor to itself. Data moves by MPI's non-blocking calls:
//
//   all_gather      Iallgather; Isend and Irecv of pieces if the whole is larger than a message may be
//   reduce_scatter  Isend and Irecv of pieces; each is added up in rank order while the next are under way.
//                   The bytes are those of Ireduce_scatter, which has an order of its own and does not add
//                   bfloat16 in float32
//   all_reduce      the same, and each sum is sent on; small tensors in one Iallgather
//   broadcast       Ibcast
//   shift           Isend, Irecv
//
// A rank that fails tells the others of the group (group_failure.h), also when its process ends by an error.
// A rank that is killed is noticed at once on the same machine; on other machines MPI's launcher ends the
// run, or the time-out is reached.

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/api/communicator.h"
#include "comm/api/exchange.h"
#include "comm/api/group_failure.h"
#include "comm/api/run_store.h"
#include "comm/mpi/mpi_run.h"

namespace fsdp::comm {

/// Everything that this process needs to reach the others, in any group.
struct MpiPlace {
  MpiRun* run = nullptr;
  RunStore store{};
  std::chrono::milliseconds timeout{};  ///< limit for a collective, and for connecting
  /// Largest message; larger data goes in pieces. The same on all ranks.
  int64_t most_bytes = MpiLibrary::kMostBytes;
};

/// A group of the run's ranks in MPI, and how they wait for each other.
class MpiGroup {
 public:
  using Requests = std::vector<MpiLibrary::Request>;

  /// All ranks of the run.
  MpiGroup(MpiPlace place, GroupIdentity identity, std::string prefix);
  /// The ranks `members` of another group. Collective over them.
  MpiGroup(MpiGroup& of, const std::vector<int>& members, GroupIdentity identity, std::string prefix);

  const MpiPlace& place() const { return place_; }
  const GroupIdentity& identity() const { return identity_; }
  const std::string& prefix() const { return prefix_; }
  MpiLibrary& library() const { return place_.run->library(); }
  MpiLibrary::GroupHandle mpi() const { return mpi_; }

  /// Describes a collective. Ranks whose records differ in these members are in different collectives.
  struct MpiRecord {
    int32_t op = 0, dtype = 0;
    int64_t numel = 0, root = 0;
    char what[96] = {};  ///< described(), cut to fit; for messages

    bool same_collective(const MpiRecord& other) const {
      return op == other.op && dtype == other.dtype && numel == other.numel && root == other.root;
    }
  };
  /// Returns when all `peers` have arrived with this record.
  void meet(const MpiRecord& record, const std::string& what, const std::vector<int>& peers,
            int tag = kMeetTag);
  /// Append the requests of a transfer of any number of bytes.
  void receive(Requests& requests, int from, int tag, char* data, int64_t bytes) const;
  void send(Requests& requests, int to, int tag, const char* data, int64_t bytes) const;
  /// Waits until all requests are done.
  void wait(Requests requests, const std::string& what);

  /// Thrown by meet() and wait().
  struct Failed {
    FailureSight sight;
  };
  /// Runs `body`. Reports a failure that this rank sees in it as a failure of the group, after an exchange
  /// with the other ranks.
  template <typename Body>
  void guard(const std::string& what, const Body& body) {
    try {
      body();
    } catch (const Failed& failed) {
      fail(failed.sight);
    } catch (const util::Error&) {
      throw;
    } catch (const std::exception& error) {
      fail({.closed = true, .what = what, .cause = first_line(error.what())});
    }
  }
  /// Makes the others notice that this rank has failed.
  void tell_all(int tag);
  /// Keeps `memory` until the process ends if the group has failed, because MPI may still write to it.
  void keep_if_failed(std::vector<at::Tensor> memory);

 private:
  class Look;
  [[noreturn]] void fail(const FailureSight& sight);
  /// Throws: the peer is in another collective.
  [[noreturn]] void refuse(const MpiRecord& other, int peer, const MpiRecord& record,
                           const std::string& what);

  const MpiPlace place_;
  const GroupIdentity identity_;
  const std::string prefix_;  ///< prefix in the store, unique to the group
  MpiLibrary::GroupHandle mpi_ = nullptr;
  bool failed_ = false;
};

/// The group of all ranks of the run. Not collective.
std::unique_ptr<MpiGroup> make_mpi_world(const MpiPlace& place);
std::unique_ptr<Communicator> make_mpi_communicator(const MpiPlace& place);

/// A group of the run's ranks; `key` must be unique to it. Collective over the group.
std::unique_ptr<Communicator> make_mpi_group(MpiGroup& world, GroupIdentity identity, const std::string& key);
std::unique_ptr<Exchange> make_mpi_exchange(MpiGroup& world, const GroupIdentity& identity,
                                            const std::string& key);

}  // namespace fsdp::comm
