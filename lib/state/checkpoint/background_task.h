#pragma once

// Long disk work that every rank does in a thread of its own, while the calling threads keep meeting in short
// collectives: however uneven the disks are, no collective waits long, and a slow disk is not mistaken for a
// lost peer.

#include <chrono>
#include <functional>
#include <future>
#include <string>

#include "comm/api/communicator.h"

namespace fsdp::checkpoint {

/// The body issues no collectives and must not touch what the calling thread uses meanwhile.
class BackgroundTask {
 public:
  /// Starts the body; `purpose` names it in messages. The communicator must outlive the object.
  BackgroundTask(comm::Communicator& communicator, std::string purpose, std::function<void()> body);

  /// Waits for this rank's body. Not collective.
  ~BackgroundTask();
  BackgroundTask(const BackgroundTask&) = delete;
  BackgroundTask& operator=(const BackgroundTask&) = delete;

  /// Whether the bodies of all ranks have ended, after waiting up to `patience` for this rank's. Collective:
  /// one all-reduce of eight bytes, with the same result on every rank.
  bool done_everywhere(std::chrono::milliseconds patience = {});

  /// Waits until all bodies have ended and rethrows their errors on every rank, as comm::agree() does.
  /// Collective; call it at most once.
  void join();

 private:
  comm::Communicator& communicator_;
  std::string purpose_;
  std::future<void> body_;
};

}  // namespace fsdp::checkpoint
