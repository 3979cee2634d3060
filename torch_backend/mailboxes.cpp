#include "torch_backend/mailboxes.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "base/util/error.h"
#include "base/util/text.h"
#include "comm/api/memory_operations.h"

namespace fsdp::comm {
namespace {

using Clock = std::chrono::steady_clock;

/// Interval at which a waiting rank checks that the sender still runs.
constexpr int64_t kSenderLookMilliseconds = 5;

constexpr int64_t kMessageHeaderBytes = 64;  ///< header before the contents of a message: a cache line
constexpr int64_t kSmallBlock = 64 << 10;
constexpr int64_t kMostIdle = 64 << 20;  ///< bytes of taken messages that are kept for the next ones

/// A place in the memory of the group: rank + 1 above the offset in its segment; never 0.
constexpr int kOffsetBits = 48;

}  // namespace

struct Mailboxes::Message {
  std::atomic<uint32_t> taken;  ///< written by the receiver
  int32_t tag;
  int64_t bytes;
  uint64_t next;  ///< place of the message that came to the box before it; 0: none
};

/// Newest first; the receiver takes all at once.
struct Mailboxes::Box {
  std::atomic<uint64_t> newest;               ///< place of the newest message; 0: none
  alignas(64) std::atomic<uint32_t> changes;  ///< the futex of those who wait
};

Mailboxes::Mailboxes(std::shared_ptr<HostRanks> host, GroupIdentity identity, Communicator& communicator)
    : host_(std::move(host)), identity_(std::move(identity)) {
  static_assert(sizeof(Message) <= kMessageHeaderBytes);
  own_box_ = SharedSegment::take(host_->own(), sizeof(Box), SharedSegment::Part::kControl);
  if (!own_box_) {
    util::fail(ErrorKind::kUnexpected, "no shared memory is left to connect a group of ranks",
               identity_.shown());
  }
  std::memset(own_box_->data(), 0, sizeof(Box));
  const at::Tensor own = at::full({1}, own_box_->offset, at::kLong);
  const at::Tensor all = at::empty({identity_.size()}, at::kLong);
  communicator.all_gather(all, own, {.unit = "mailboxes"})->wait();
  for (int rank = 0; rank < identity_.size(); ++rank) {
    std::byte* box = host_->of(rank).data() + all.const_data_ptr<int64_t>()[rank];
    boxes_.push_back(reinterpret_cast<Box*>(box));
  }
}

Mailboxes::~Mailboxes() {
  // Other ranks may still take messages of this rank, and send to it.
  HostRanks::Retired box{.done = [] { return false; }, .blocks = {}};
  box.blocks.push_back(std::move(own_box_));
  host_->keep_until_unused(std::move(box));
  std::vector<const Message*> messages;
  HostRanks::Retired sent;
  for (auto& block : sent_) {
    messages.push_back(&message_at(identity_.rank, block->offset));
    sent.blocks.push_back(std::move(block));
  }
  sent.done = [messages = std::move(messages)] {
    return std::ranges::all_of(messages, [](const Message* one) { return one->taken.load() != 0; });
  };
  host_->keep_until_unused(std::move(sent));
}

Mailboxes::Message& Mailboxes::message_at(int rank, int64_t offset) const {
  return *reinterpret_cast<Message*>(host_->of(rank).data() + offset);
}

/// A block of this rank's segment that all ranks may write. Blocks are reused: fresh memory costs a page
/// fault per 4 KiB.
SharedSegment::Block& Mailboxes::block_for(int64_t bytes) {
  const auto is_taken = [this](const std::unique_ptr<SharedSegment::Block>& block) {
    return message_at(identity_.rank, block->offset).taken.load(std::memory_order_acquire) != 0;
  };
  int64_t idle = 0;
  for (const auto& block : sent_) {
    if (!is_taken(block)) continue;
    if (block->bytes >= bytes && block->bytes <= std::max(4 * bytes, kSmallBlock)) return *block;
    idle += block->bytes;
  }
  if (idle > kMostIdle) std::erase_if(sent_, is_taken);
  auto block = SharedSegment::take(host_->own(), bytes, SharedSegment::Part::kCommon);
  if (!block) {
    util::fail(ErrorKind::kUnexpected, "no shared memory is left for a message of ", util::human_bytes(bytes),
               "; messages take memory until they are received");
  }
  sent_.push_back(std::move(block));
  return *sent_.back();
}

void Mailboxes::send(int to, int tag, const at::Tensor& tensor) {
  const at::Tensor dense = tensor.contiguous();
  const auto bytes = static_cast<int64_t>(dense.nbytes());
  const std::lock_guard lock(sending_);
  SharedSegment::Block& block = block_for(kMessageHeaderBytes + bytes);
  Message& message = message_at(identity_.rank, block.offset);
  message.taken.store(0, std::memory_order_relaxed);
  message.tag = tag;
  message.bytes = bytes;
  if (bytes > 0) {
    copy_memory(reinterpret_cast<std::byte*>(&message) + kMessageHeaderBytes, dense.const_data_ptr(), bytes);
  }
  Box& box = *boxes_[static_cast<size_t>(to)];
  const uint64_t place =
      static_cast<uint64_t>(identity_.rank + 1) << kOffsetBits | static_cast<uint64_t>(block.offset);
  message.next = box.newest.load();
  while (!box.newest.compare_exchange_weak(message.next, place)) {
  }
  box.changes.fetch_add(1);
  futex_wake_all(box.changes);
}

void Mailboxes::post(std::shared_ptr<Receive> receive) {
  const std::lock_guard lock(receiving_);
  posted_.push_back(std::move(receive));
}

bool Mailboxes::is_done(const Receive& receive) {
  const std::lock_guard lock(receiving_);
  if (!receive.done) {
    take_messages();
    give_out();
  }
  return receive.done;
}

void Mailboxes::take_messages() {
  std::vector<Arrived> latest;
  uint64_t place = boxes_[static_cast<size_t>(identity_.rank)]->newest.exchange(0);
  while (place != 0) {
    const Arrived arrived{.from = static_cast<int>(place >> kOffsetBits) - 1,
                          .offset = static_cast<int64_t>(place & ((uint64_t{1} << kOffsetBits) - 1))};
    latest.push_back(arrived);
    place = message_at(arrived.from, arrived.offset).next;
  }
  arrived_.insert(arrived_.end(), latest.rbegin(), latest.rend());
}

void Mailboxes::give_out() {
  bool some = false;
  for (auto receive = posted_.begin(); receive != posted_.end();) {
    const auto fits = [this, &wanted = **receive](const Arrived& arrived) {
      return (wanted.from == kAnyRank || wanted.from == arrived.from) &&
             wanted.tag == message_at(arrived.from, arrived.offset).tag;
    };
    const auto found = std::ranges::find_if(arrived_, fits);
    if (found == arrived_.end()) {
      ++receive;
      continue;
    }
    take(*found, **receive);
    arrived_.erase(found);
    receive = posted_.erase(receive);
    some = true;
  }
  if (!some) return;
  // Another thread of this process may wait for one of the messages.
  std::atomic<uint32_t>& changes = boxes_[static_cast<size_t>(identity_.rank)]->changes;
  changes.fetch_add(1);
  futex_wake_all(changes);
}

void Mailboxes::take(const Arrived& arrived, Receive& receive) const {
  Message& message = message_at(arrived.from, arrived.offset);
  const auto expected = static_cast<int64_t>(receive.tensor.nbytes());
  if (message.bytes != expected) {
    receive.misfit = concat("rank ", arrived.from, " has sent ", message.bytes, " bytes with tag ",
                            receive.tag, ", but rank ", identity_.rank, " receives them into ", expected,
                            "; both must give tensors of one size and type");
  } else if (expected > 0) {
    const auto* contents = reinterpret_cast<const std::byte*>(&message) + kMessageHeaderBytes;
    copy_memory(receive.tensor.data_ptr(), contents, expected);
  }
  receive.sender = arrived.from;
  receive.done = true;
  message.taken.store(1, std::memory_order_release);
}

/// The sender if it is lost. If any rank may send: all others if all are lost.
std::vector<int> Mailboxes::lost_senders(const Receive& receive) const {
  if (receive.from != kAnyRank) {
    return host_->present(receive.from) ? std::vector<int>{} : std::vector<int>{receive.from};
  }
  std::vector<int> lost;
  for (int rank = 0; rank < identity_.size(); ++rank) {
    if (rank == identity_.rank) continue;
    if (host_->present(rank)) return {};
    lost.push_back(rank);
  }
  return lost;
}

void Mailboxes::wait(const std::shared_ptr<Receive>& receive, double timeout_seconds) {
  const auto deadline = Clock::now() + std::chrono::duration<double>(timeout_seconds);
  std::atomic<uint32_t>& changes = boxes_[static_cast<size_t>(identity_.rank)]->changes;
  for (;;) {
    const uint32_t seen = changes.load();
    if (is_done(*receive)) break;
    const std::vector<int> lost = lost_senders(*receive);
    if (!lost.empty()) {
      if (is_done(*receive)) break;  // it was sent, and then its sender left
      fail(receive, {.silent_ranks = lost, .cause = "it has ended or has left the group"});
    }
    if (Clock::now() >= deadline) {
      std::vector<int> silent;
      if (receive->from != kAnyRank) silent.push_back(receive->from);
      fail(receive, {.timeout = true,
                     .timeout_seconds = timeout_seconds,
                     .silent_ranks = silent,
                     .cause = "nothing was sent with this tag"});
    }
    futex_wait(changes, seen, kSenderLookMilliseconds);
  }
  if (!receive->misfit.empty()) util::fail(ErrorKind::kUnexpected, receive->misfit);
}

void Mailboxes::fail(const std::shared_ptr<Receive>& receive, GroupFailure failure) {
  {
    const std::lock_guard lock(receiving_);
    std::erase(posted_, receive);
  }
  const std::string from = receive->from == kAnyRank ? "any rank" : concat("rank ", receive->from);
  fail_group(identity_, concat("recv from ", from, " with tag ", receive->tag), failure);
}

}  // namespace fsdp::comm
