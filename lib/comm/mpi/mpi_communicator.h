#pragma once

// Collectives over the system's MPI (mpi_run.h). They are complete at the call.
//
// Each begins with a message to every rank that takes part, which says what the collective is; data follows once all
// have come. So ranks in different collectives are told apart before data is mixed up, a time-out knows for whom it waits, and from
// then on the transfer has the processor to itself. Data moves without blocking MPI:
//
//   all_gather      Iallgather; Isend and Irecv of pieces where the whole is larger than a message may be
//   reduce_scatter  Isend and Irecv of pieces, each of which is added up in rank order while the next are under way. The bytes are those
//                   of Ireduce_scatter, whose order of additions is MPI's own, and which does not add bfloat16 in float32
//   all_reduce      the same, and each sum is sent on; small tensors in one Iallgather
//   broadcast       Ibcast
//   shift           Isend, Irecv
//
// A rank that has failed tells the others of the group (group_failure.h). One whose process ends by an error does too; one that is
// killed is noticed at once by those on the same machine, and elsewhere ended by MPI's launcher, or noticed by the time-out.

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

/// How this process reaches the others, in any group.
struct MpiPlace {
  MpiRun* run = nullptr;
  RunStore store{};
  std::chrono::milliseconds timeout{};  ///< of a collective, and of connecting
  /// Of a message: what is larger goes in pieces. The same on all ranks.
  int64_t most_bytes = MpiLibrary::kMostBytes;
};

/// A group of the run's ranks in MPI, and how they wait for each other.
class MpiGroup {
 public:
  using Requests = std::vector<MpiLibrary::Request>;

  /// All ranks of the run.
  MpiGroup(MpiPlace place, GroupIdentity identity, std::string prefix);
  /// Ranks `members` of another. Collective over them.
  MpiGroup(MpiGroup& of, const std::vector<int>& members, GroupIdentity identity, std::string prefix);

  const MpiPlace& place() const { return place_; }
  const GroupIdentity& identity() const { return identity_; }
  const std::string& prefix() const { return prefix_; }
  MpiLibrary& library() const { return place_.run->library(); }
  MpiLibrary::Group mpi() const { return mpi_; }

  /// What a collective is: ranks in which these differ are in different ones.
  struct Record {
    int32_t op = 0, dtype = 0;
    int64_t numel = 0, root = 0;
    char what[96] = {};  ///< described(), cut; for messages

    bool same_collective(const Record& other) const {
      return op == other.op && dtype == other.dtype && numel == other.numel && root == other.root;
    }
  };
  /// Returns when all `peers` have come with this record.
  void meet(const Record& record, const std::string& what, const std::vector<int>& peers, int tag = kMeetTag);
  /// Adds the transfer of any number of bytes.
  void receive(Requests& requests, int from, int tag, char* data, int64_t bytes) const;
  void send(Requests& requests, int to, int tag, const char* data, int64_t bytes) const;
  /// Until all are done.
  void wait(Requests requests, const std::string& what);

  /// What meet() and wait() throw.
  struct Failed {
    FailureSight sight;
  };
  /// Runs `body`, and makes a failure that this rank sees in it one of the group, after an exchange with the others.
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
  /// Keeps `memory`, which MPI may still write, until the process ends, if the group has failed.
  void keep_if_failed(std::vector<at::Tensor> memory);

 private:
  class Look;
  [[noreturn]] void fail(const FailureSight& sight);
  /// For a peer that is in another collective.
  [[noreturn]] void refuse(const Record& other, int peer, const Record& record, const std::string& what);

  const MpiPlace place_;
  const GroupIdentity identity_;
  const std::string prefix_;  ///< in the store, unique to the group
  MpiLibrary::Group mpi_ = nullptr;
  bool failed_ = false;
};

/// Of the whole run. Not collective.
std::unique_ptr<MpiGroup> make_mpi_world(const MpiPlace& place);
std::unique_ptr<Communicator> make_mpi_communicator(const MpiPlace& place);

/// Of a group of the run's ranks; `key` must be unique to it. Collective over the group.
std::unique_ptr<Communicator> make_mpi_group(MpiGroup& world, GroupIdentity identity, const std::string& key);
std::unique_ptr<Exchange> make_mpi_exchange(MpiGroup& world, const GroupIdentity& identity,
                                            const std::string& key);

}  // namespace fsdp::comm
