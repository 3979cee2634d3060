#pragma once

// Mailboxes: messages from one rank of a host to another, in memory that they share. Sending only copies: the message lies
// in the sender's segment until its receiver takes it, so ranks may send to each other in any order, at any time, beside
// the collectives of the group. There is no thread: messages are taken while a rank waits for one or asks for it.

#include <ATen/core/Tensor.h>

#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "comm/api/communicator.h"
#include "comm/api/group_failure.h"
#include "comm/shm/host_ranks.h"

namespace fsdp::comm {

/// Thread-safe. Ranks are those of the group, whose numbers are also those of its HostRanks.
class Mailboxes {
 public:
  static constexpr int kAnyRank = -1;

  /// A message that is awaited. The tensor is contiguous, and is written when the message is taken.
  struct Receive {
    int from = kAnyRank;
    int tag = 0;
    at::Tensor tensor{};
    bool done = false;  ///< what follows is set
    int sender = -1;
    std::string misfit{};  ///< why the message was dropped; empty: it was not
  };

  /// Collective. The communicator tells the ranks where the boxes of the others are.
  Mailboxes(std::shared_ptr<HostRanks> host, GroupIdentity identity, Communicator& communicator);
  ~Mailboxes();
  Mailboxes(const Mailboxes&) = delete;
  Mailboxes& operator=(const Mailboxes&) = delete;

  /// Throws when there is no memory to share. Messages between two ranks with one tag are taken in the order of sending.
  void send(int to, int tag, const at::Tensor& tensor);

  /// Awaits a message; those with the same tag are given to the oldest. `receive` is shared with the caller.
  void post(std::shared_ptr<Receive> receive);
  /// Whether the message has been taken.
  bool is_done(const Receive& receive);
  /// Waits for it; throws Error(kPeerLost) if its sender is gone, Error(kTimeout), or for one of another size.
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
  std::vector<Box*> boxes_;                                  ///< by rank
  std::mutex sending_;                                       ///< guards the next
  std::vector<std::unique_ptr<SharedSegment::Block>> sent_;  ///< of messages; taken ones are used again
  std::mutex receiving_;                                     ///< guards the others
  std::deque<Arrived> arrived_;                              ///< in the order of sending, for each sender
  std::deque<std::shared_ptr<Receive>> posted_;
};

}  // namespace fsdp::comm
