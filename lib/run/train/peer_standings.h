#pragma once

// Who waits for whom when a run fails that fsdp-launch does not look after: told by its ranks themselves.

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

/// How ranks reach each other when collectives have failed. No call waits for another rank.
struct PeerPosts {
  int rank = 0, world_size = 1;
  std::function<void(const std::string& text)> post;                 ///< to all other ranks
  std::function<std::optional<std::pair<int, std::string>>()> next;  ///< a rank and what it has posted
  std::function<bool(int rank)> has_ended;                           ///< as far as known
};

PeerPosts posts_over_mpi(comm::MpiRun& run);

/// Thread-safe.
class PeerStandings {
 public:
  PeerStandings(PeerPosts posts, std::shared_ptr<comm::Activity> activity);

  /// Tells ranks that have failed where this one stands. Called several times a second, because a rank that others wait for may compute.
  void answer();
  /// This rank has failed and is about to end with this exit code. The lowest rank of which that is true logs the table of all
  /// (launch::wait_table()); the others return when it has. Ranks that say nothing within a second are in it without a report. Two
  /// seconds at most.
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
      ends_;  ///< of ranks that have posted, and of this one; exit code 0: it goes on
  bool answered_ = false, shown_ = false;
};

}  // namespace fsdp::train
