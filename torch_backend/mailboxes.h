#pragma once

// Mailboxes: messages between the ranks of a host, in memory that they share. Sending only copies: the
// message stays in the sender's segment until its receiver takes it, so ranks may send to each other in any
// order, at any time, beside the collectives of the group. There is no thread: a rank takes messages while it
// waits for one or asks for it.

#include <ATen/core/Tensor.h>

#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "comm/api/communicator.h"
#include "comm/api/group_failure.h"
#include "comm/shm/host_ranks.h"

namespace fsdp::comm {

/// Thread-safe. Ranks are numbered in the group, as in its HostRanks.
class Mailboxes {
 public:
  static constexpr int kAnyRank = -1;

  /// A message to be received. The tensor is contiguous, and is written when the message is taken.
  struct Receive {
    int from = kAnyRank;
    int tag = 0;
    at::Tensor tensor{};
    bool done = false;  ///< whether the members below are set
    int sender = -1;
    std::string misfit{};  ///< reason why the message was dropped; empty: it was not
  };

  /// Collective. The ranks learn through the communicator where the boxes of the others are.
  Mailboxes(std::shared_ptr<HostRanks> host, GroupIdentity identity, Communicator& communicator);
  ~Mailboxes();
  Mailboxes(const Mailboxes&) = delete;
  Mailboxes& operator=(const Mailboxes&) = delete;

  /// Throws if there is no memory to share. Messages between two ranks with one tag are taken in the order of
  /// sending.
  void send(int to, int tag, const at::Tensor& tensor);

  /// Registers a message to be received; messages with the same tag go to the oldest. The caller shares
  /// `receive`.
  void post(std::shared_ptr<Receive> receive);
  /// Whether the message has been taken.
  bool is_done(const Receive& receive);
  /// Waits for the message. Throws Error(kPeerLost) if its sender is lost, Error(kTimeout), or an error if it
  /// has another size.
  void wait(const std::shared_ptr<Receive>& receive, double timeout_seconds);

 private:
  struct Message;
  struct Box;
  struct Arrived {
    int from;
    int64_t offset;
  };

  Message& message_at(int rank, int64_t offset) const;
  SharedSegment::Block& block_for(int64_t bytes);
  void take_messages();
  void give_out();
  void take(const Arrived& arrived, Receive& receive) const;
  std::vector<int> lost_senders(const Receive& receive) const;
  [[noreturn]] void fail(const std::shared_ptr<Receive>& receive, GroupFailure failure);

  const std::shared_ptr<HostRanks> host_;
  const GroupIdentity identity_;
  std::unique_ptr<SharedSegment::Block> own_box_;
  std::vector<Box*> boxes_;  ///< indexed by rank
  std::mutex sending_;       ///< guards sent_
  /// Blocks of messages; blocks of taken messages are reused.
  std::vector<std::unique_ptr<SharedSegment::Block>> sent_;
  std::mutex receiving_;  ///< guards the members below
  /// Each sender's messages in the order of sending.
  std::deque<Arrived> arrived_;
  std::deque<std::shared_ptr<Receive>> posted_;
};

}  // namespace fsdp::comm
