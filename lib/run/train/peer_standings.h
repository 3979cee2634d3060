#pragma once

// PeerStandings: when a run without fsdp-launch fails, its ranks report to each other which of them waits for
// which.

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "comm/api/activity.h"
#include "comm/mpi/mpi_run.h"
#include "tools/launch/verdict.h"

namespace fsdp::train {

/// Functions by which ranks reach each other when collectives have failed. No call waits for another rank.
struct PeerPosts {
  int rank = 0, world_size = 1;
  std::function<void(const std::string& text)> post;                 ///< sends to all other ranks
  std::function<std::optional<std::pair<int, std::string>>()> next;  ///< returns a rank and its next post
  std::function<bool(int rank)> has_ended;                           ///< whether it is known to have ended
};

PeerPosts posts_over_mpi(comm::MpiRun& run);

/// Thread-safe.
class PeerStandings {
 public:
  PeerStandings(PeerPosts posts, std::shared_ptr<comm::Activity> activity);

  /// Reports the state of this rank to ranks that have failed. Called several times a second, because a rank
  /// for which others wait may be computing.
  void answer();
  /// Reports that this rank has failed and is about to end with this exit code. The lowest rank that has
  /// failed logs the table of all ranks (launch::wait_table()), without the reports of ranks that have not
  /// answered within a second; the others return when it has ended. Takes two seconds at most.
  void tell(int exit_code);

 private:
  void post(int exit_code);
  void take_posts();
  bool all_are_known() const;
  int first_failed() const;
  std::string table() const;

  const PeerPosts posts_;
  const std::shared_ptr<comm::Activity> activity_;
  std::mutex mutex_;
  std::map<int, launch::WorkerEnd>
      ends_;  ///< states of this rank and of ranks that have posted; exit code 0: the rank goes on
  bool answered_ = false, shown_ = false;
};

}  // namespace fsdp::train
