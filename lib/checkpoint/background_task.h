#pragma once

// Long work of the disk that all ranks do at once, each in a thread of its own, while the caller's thread
// keeps meeting the other ranks: no collective then waits longer than a moment, however uneven the disks are,
// so that a slow disk is not taken for a lost peer.

#include <chrono>
#include <functional>
#include <future>
#include <string>

#include "comm/communicator.h"

namespace fsdp::checkpoint {

/// The body issues no collectives and must not touch what the caller's thread uses meanwhile.
class BackgroundTask {
 public:
  /// Begins; `purpose` names it in messages. The communicator must outlive the object.
  BackgroundTask(comm::Communicator& communicator, std::string purpose, std::function<void()> body);

  /// Waits for this rank's body, without meeting the others.
  ~BackgroundTask();
  BackgroundTask(const BackgroundTask&) = delete;
  BackgroundTask& operator=(const BackgroundTask&) = delete;

  /// Whether every rank's body has ended, after waiting up to `patience` for this rank's. One all-reduce of
  /// eight bytes. Collective; the answer is the same on every rank.
  bool done_everywhere(std::chrono::milliseconds patience = {});

  /// Waits until it is done everywhere. Collective; what a body threw is thrown on every rank, as by
  /// comm::agree(). Call it at most once.
  void join();

 private:
  comm::Communicator& communicator_;
  std::string purpose_;
  std::future<void> body_;
};

/// comm::agree() for bodies that may take long.
void agree_in_background(comm::Communicator& communicator, const std::string& purpose,
                         std::function<void()> body);

}  // namespace fsdp::checkpoint
