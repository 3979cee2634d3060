#pragma once

// Long disk work that every rank does in a background thread, while the calling threads keep issuing short
// collectives. A slow disk therefore delays no collective, and is not mistaken for a lost peer.

#include <chrono>
#include <functional>
#include <future>
#include <string>

#include "comm/api/communicator.h"

namespace fsdp::checkpoint {

/// Runs a body in a background thread. The body must not issue collectives or touch data that the calling
/// thread uses meanwhile.
class BackgroundTask {
 public:
  /// Starts the body. `purpose` names it in messages. The communicator must outlive the object.
  BackgroundTask(comm::Communicator& communicator, std::string purpose, std::function<void()> body);

  /// Waits for this rank's body. Not collective.
  ~BackgroundTask();
  BackgroundTask(const BackgroundTask&) = delete;
  BackgroundTask& operator=(const BackgroundTask&) = delete;

  /// Whether the bodies of all ranks have ended, after waiting up to `patience` for this rank's body. The
  /// result is the same on every rank. Collective: one all-reduce of eight bytes.
  bool done_everywhere(std::chrono::milliseconds patience = {});

  /// Waits until all bodies have ended and rethrows their errors on every rank, like comm::agree().
  /// Collective. Call it at most once.
  void join();

 private:
  comm::Communicator& communicator_;
  std::string purpose_;
  std::future<void> body_;
};

}  // namespace fsdp::checkpoint
