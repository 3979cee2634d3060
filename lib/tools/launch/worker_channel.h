#pragma once

// A worker's end of the channel to its launcher, in a run with replicas (fsdp-launch --replica-size). A
// program that trains in such a run looks like this:
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
// RANK and WORLD_SIZE of the environment number the workers of the whole run. Use the ranks in the epoch
// instead.

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "tools/launch/endpoint.h"
#include "tools/launch/epoch.h"

namespace fsdp::launch {

/// The worker's end of the channel. Thread-safe.
class WorkerChannel {
 public:
  /// How long to wait for an epoch. The launcher's own limits (join_timeout of --rdzv-conf) end a run that
  /// gets no further epoch, so this limit only matters if the launcher is stopped.
  struct Wait {
    double timeout_seconds = 3600;
    std::function<bool()> give_up{};  ///< called several times a second, for programs that handle signals
  };

  /// The channel of kChannelVariable. Null without replicas. Throws Error(kUsage) if the variable does not
  /// name an open socket.
  static std::unique_ptr<WorkerChannel> from_environment();
  explicit WorkerChannel(Descriptor socket);

  /// Reports that this process can take part, and waits for its first epoch. Nothing if `give_up` returned
  /// true. Throws Error(kTimeout), and Error(kPeerLost) if the launcher is gone.
  std::optional<Epoch> ready(const Wait& wait);

  /// Reports that this process has left its epoch, and waits for the next epoch. Fills in epoch and kind of
  /// the report. Requires: nothing of the old epoch is in use. Throws like ready().
  std::optional<Epoch> stopped(WorkerReport report, const Wait& wait);

  /// Whether to leave the current epoch, between two steps or at once. Does not block. The workers of an
  /// epoch learn of a pause at different moments. They must agree on the step after which they stop, or some
  /// would wait for others until the epoch is broken off.
  bool change_is_due();
  /// Whether to leave the current epoch at once, because waiting for others in it is in vain. Does not block.
  bool is_broken_off();

 private:
  std::optional<Epoch> await(const WorkerReport& report, const Wait& wait);
  void read();

  std::mutex mutex_;
  LineSocket socket_;
  Epoch epoch_;  ///< the current epoch
  Epoch next_;   ///< the epoch that was announced last
  int paused_epoch_ = 0, broken_epoch_ = 0;
};

}  // namespace fsdp::launch
