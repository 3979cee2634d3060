#pragma once

// MpiRun: this process in a run that mpirun or srun has started, and the run's store over MPI. Opens no port
// besides those of MPI itself.

#include <atomic>
#include <chrono>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "comm/api/launch_environment.h"
#include "comm/api/run_store.h"
#include "comm/mpi/mpi_library.h"

namespace fsdp::comm {

/// Tags that separate the kinds of messages in a group.
enum MpiTag : int {
  kMeetTag = 1,
  kConnectTag,
  kDataTag,
  kLeftTag,
  kFailedTag,
  kAskTag,
  kPostTag,
  kFirstAnswerTag
};

class MpiRun {
 public:
  /// Loads the module (fsdp_mpi.so) and begins MPI at the first call, which is collective over the run. The
  /// module is the file that FSDP_MPI_MODULE names, or is in ../lib/fsdp of the program's folder, or in
  /// LD_LIBRARY_PATH. Throws Error(kUsage) if there is no module or MPI does not begin.
  ///
  /// Ends MPI when the process exits; after an error of this rank alone, ends all processes of the run by
  /// MPI_Abort.
  static MpiRun& get();

  MpiLibrary& library() const { return library_; }
  const MpiLibrary::World& world() const { return world_; }
  /// The ranks as MPI numbers them. Throws Error(kUsage) if the variables of another launcher give another
  /// number of ranks.
  LaunchEnvironment environment() const;
  /// The run's store, in the process of rank 0. A call throws after `timeout` without an answer.
  RunStore store(std::chrono::milliseconds timeout);

  /// Whether the process of a rank on this machine has ended; false for ranks on other machines.
  bool has_ended(int rank) const;
  /// MpiLibrary::make_group(), in which this rank has number `rank`. When this process ends by an error, the
  /// members are told (kLeftTag).
  MpiLibrary::GroupHandle make_group(MpiLibrary::GroupHandle of, const std::vector<int>& ranks, int rank);
  /// Sends an empty message to all of a group, and does not wait for it.
  void tell(MpiLibrary::GroupHandle group, int rank, int size, int tag);
  /// Sends a text to all other ranks of the run, and does not wait for them.
  void post(const std::string& text);
  /// The next posted text and its rank, in order; each is returned once. Called by one thread at a time.
  std::optional<std::pair<int, std::string>> next_post();
  /// Notes that a group has failed: other ranks may be lost, so the end of this process must not wait for
  /// them.
  void note_failure() { failed_ = true; }

 private:
  explicit MpiRun(MpiLibrary& library);
  void meet_processes();
  void leave(int exit_code);
  void send_to_others(MpiLibrary::GroupHandle group, int rank, int size, int tag, std::string_view text);

  struct MpiMember {
    MpiLibrary::GroupHandle group;
    int rank, size;
  };

  MpiLibrary& library_;
  MpiLibrary::World world_;
  MpiLibrary::GroupHandle store_group_ = nullptr;
  std::vector<int> pid_fds_;  ///< -1 for this process and for processes on other machines
  std::mutex mutex_;
  std::vector<MpiMember> members_;
  std::atomic<bool> failed_ = false;
};

/// A store over MPI in the process of rank 0, where a thread answers the others until the process ends.
/// `group` has all ranks and is used for nothing else. Not collective.
RunStore make_mpi_store(MpiLibrary& library, MpiLibrary::GroupHandle group, const MpiLibrary::World& world,
                        std::chrono::milliseconds timeout);

/// Pauses between polls, growing longer. The first polls have none, because most operations end quickly.
class MpiPause {
 public:
  explicit MpiPause(int looks_without = 64) : left_(looks_without) {}
  void operator()();

 private:
  int left_;
};

}  // namespace fsdp::comm
