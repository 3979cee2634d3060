#pragma once

// A worker's end of the channel to its launcher, in a run with replicas (fsdp-launch --replica-size). A program
// that trains in such a run looks like this:
//
//   auto channel = WorkerChannel::from_environment();
//   std::optional<Epoch> epoch = channel->ready(wait);
//   for (;;) {
//     ... connect the epoch's ranks at its master_addr:master_port; bring those behind to its step ...
//     while (steps are left and !channel->change_is_due()) ... a step, given up when is_broken_off() ...
//     if (no steps are left) break;                       // and exit with 0
//     epoch = channel->stopped({.step = ..., ...}, wait);
//   }
//
// RANK and WORLD_SIZE of the environment number the workers of the whole run; the epoch has the ranks that count.

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "tools/launch/endpoint.h"
#include "tools/launch/epoch.h"

namespace fsdp::launch {

/// All functions may be called from several threads, such as one that computes and one that watches.
class WorkerChannel {
 public:
  /// How long to wait for an epoch. The launcher's own limits (join_timeout of --rdzv-conf) end a run in which
  /// there will be none, so this is for a launcher that is stopped.
  struct Wait {
    double timeout_seconds = 3600;
    std::function<bool()> give_up{};  ///< asked several times a second: for programs that handle signals
  };

  /// Null without replicas. Throws Error(kUsage) when the variable does not name an open socket.
  static std::unique_ptr<WorkerChannel> from_environment();
  explicit WorkerChannel(Descriptor socket);

  /// Says that this process can take part, and waits for its first epoch; nullopt if told to give up. Throws
  /// Error(kTimeout), and Error(kPeerLost) when the launcher is gone.
  std::optional<Epoch> ready(const Wait& wait);

  /// Says that this process has left its epoch (epoch and kind of the report are filled in), and waits for the
  /// next one. Nothing of the old epoch may be in use any more. Throws as ready() does.
  std::optional<Epoch> stopped(WorkerReport report, const Wait& wait);

  /// The present epoch should be left between two steps, or at once. Does not block. The workers of an epoch hear
  /// of a pause at different moments: they must agree on the step after which they stop, or some wait for others
  /// until they are told to break off.
  bool change_is_due();
  /// The present epoch must be left at once: waiting for others in it is in vain. Does not block.
  bool is_broken_off();
  /// Why, as the launcher said.
  std::string why_broken_off();

 private:
  std::optional<Epoch> await(const WorkerReport& report, const Wait& wait);
  void read();

  std::mutex mutex_;
  LineSocket socket_;
  Epoch epoch_;  ///< the present one
  Epoch next_;   ///< the last one that was announced
  int paused_epoch_ = 0, broken_epoch_ = 0;
  std::string why_;
};

}  // namespace fsdp::launch
