#include "comm/shm/shm_group.h"

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cstring>

#include "base/util/error.h"
#include "base/util/hash.h"
#include "base/util/text.h"

namespace fsdp::comm {
namespace {

using Clock = std::chrono::steady_clock;

/// Interval at which a sleeping rank checks that the ranks it waits for still run.
constexpr int64_t kLookMilliseconds = 5;

/// Some tens of microseconds, about as long as a sleep and a wake-up take.
constexpr int kSpins = 2000;
constexpr int kSpinsBetweenYields = 100;

int usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(0, sizeof(set), &set) != 0) return 1;
  return CPU_COUNT(&set);
}

/// Leaves the core to its other thread for a moment.
void pause_core() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

/// One rank's part of the control block. Only this rank writes it, except for `blamed`.
struct alignas(128) ShmGroup::Member {
  std::atomic<uint32_t> arrived;  ///< the last meeting to which it came
  std::atomic<uint32_t> left;     ///< it has destroyed its ShmGroup
  std::atomic<uint32_t> blamed;   ///< a rank gave up waiting for it
  alignas(128) Record records[2];
};

/// Zero-filled when made. The members follow it.
struct ShmGroup::Control {
  std::atomic<uint64_t> key;
  alignas(128) std::atomic<uint32_t> arrivals;  ///< at the present meeting
  alignas(128) std::atomic<uint32_t> round;     ///< number of complete meetings; the futex of the sleepers
  std::atomic<uint32_t> sleepers;
  std::atomic<uint32_t> failed;  ///< the ErrorKind of the first rank that gave up
};

ShmGroup::ShmGroup(std::shared_ptr<HostRanks> host, GroupIdentity identity, double timeout_seconds,
                   std::string key)
    : host_(std::move(host)),
      identity_(std::move(identity)),
      timeout_seconds_(timeout_seconds),
      key_(std::move(key)),
      number_(util::hash_of(0, key_)) {
  // If ranks share cores, a spinning rank may keep the rank that it waits for from running.
  spins_ = host_->host_size() <= usable_cores() ? kSpins : 0;
}

std::unique_ptr<ShmGroup> ShmGroup::connect(std::shared_ptr<HostRanks> host, GroupIdentity identity,
                                            double timeout_seconds, const std::string& key) {
  std::unique_ptr<ShmGroup> group(new ShmGroup(std::move(host), std::move(identity), timeout_seconds, key));
  if (group->identity_.rank > 0) {
    group->find_control();
    group->meet({}, "connecting");
    return group;
  }
  group->make_control();
  try {
    group->meet({}, "connecting");
  } catch (...) {
    group->host_->take_down(group->number_);
    throw;
  }
  group->host_->take_down(group->number_);
  return group;
}

ShmGroup::~ShmGroup() {
  if (control_ == nullptr) return;
  // Others may still read the last record and stage of this rank, and write to the control block.
  const auto unused = [control = control_, key = number_, size = identity_.size()] {
    if (control->key.load() != key) return true;
    const auto* members = reinterpret_cast<const Member*>(control + 1);
    return std::all_of(members, members + size, [](const Member& one) { return one.left.load() != 0; });
  };
  HostRanks::Retired retired{.done = unused, .blocks = {}};
  for (auto* block : {&stage_, &former_stage_, &control_block_}) {
    if (*block) retired.blocks.push_back(std::move(*block));
  }
  member(identity_.rank).left.store(1);
  futex_wake_all(control_->round);
  host_->keep_until_unused(std::move(retired));
}

void ShmGroup::make_control() {
  static_assert(sizeof(Control) % alignof(Member) == 0);
  const auto bytes = sizeof(Control) + sizeof(Member) * static_cast<size_t>(identity_.size());
  control_block_ =
      SharedSegment::take(host_->own(), static_cast<int64_t>(bytes), SharedSegment::Part::kControl);
  if (!control_block_) {
    util::fail(ErrorKind::kUnexpected, "no shared memory is left to connect a group of ranks",
               identity_.shown());
  }
  std::memset(control_block_->data(), 0, bytes);
  control_ = static_cast<Control*>(control_block_->data());
  control_->key.store(number_);
  host_->post(number_, control_block_->offset);
}

void ShmGroup::find_control() {
  const int maker = identity_.ranks.front();
  const auto deadline = Clock::now() + std::chrono::duration<double>(timeout_seconds_);
  for (;;) {
    const uint32_t changes = host_->posts(maker).load();
    const int64_t offset = host_->posted(maker, number_);
    if (offset >= 0) {
      control_ = reinterpret_cast<Control*>(host_->of(maker).data() + offset);
      return;
    }
    if (!host_->present(maker)) fail({maker}, false, "it has ended", "connecting");
    if (Clock::now() >= deadline) fail({maker}, true, "it did not arrive", "connecting");
    futex_wait(host_->posts(maker), changes, kLookMilliseconds);
  }
}

ShmGroup::Member& ShmGroup::member(int rank) const { return reinterpret_cast<Member*>(control_ + 1)[rank]; }

const ShmGroup::Record& ShmGroup::record(int rank) const { return member(rank).records[meetings_ % 2]; }

const std::byte* ShmGroup::memory_of(int rank, int64_t offset) const {
  return host_->of(identity_.ranks[static_cast<size_t>(rank)]).data() + offset;
}

std::byte* ShmGroup::stage(int64_t bytes) {
  constexpr int64_t kSmallest = 32 << 10;
  if (bytes > stage_half_bytes_) {
    const int64_t half = std::max(bytes, kSmallest);
    auto larger = SharedSegment::take(host_->own(), 2 * half);
    if (!larger) {
      util::fail(ErrorKind::kUnexpected, "no shared memory is left for a buffer of ",
                 util::human_bytes(2 * half), " through which ranks exchange tensors");
    }
    former_stage_ = std::move(stage_);  // others may still read it, until the next meeting
    stage_ = std::move(larger);
    stage_half_bytes_ = half;
  }
  return host_->own()->data() + stage_offset();
}

int64_t ShmGroup::stage_offset() const { return stage_->offset + (meetings_ + 1) % 2 * stage_half_bytes_; }

void ShmGroup::meet(const Record& record, const std::string& what) {
  if (failure_) std::rethrow_exception(failure_);
  try {
    member(identity_.rank).records[(meetings_ + 1) % 2] = record;
    arrive(what);
    for (int rank = 0; rank < identity_.size(); ++rank) {
      const Record& theirs = this->record(rank);
      if (theirs.same_collective(record)) continue;
      util::fail(ErrorKind::kUnexpected, "rank ", identity_.ranks[static_cast<size_t>(rank)],
                 " is in another collective (", theirs.unit, ", ", theirs.numel,
                 " elements) than this rank, which is in ", what, ", ", record.numel, " elements");
    }
  } catch (...) {
    failure_ = std::current_exception();
    throw;
  }
}

void ShmGroup::arrive(const std::string& what) {
  const uint32_t round = ++meetings_;
  if (control_->failed.load() != 0) follow_failure(what);
  member(identity_.rank).arrived.store(round, std::memory_order_release);
  if (control_->arrivals.fetch_add(1) + 1 == static_cast<uint32_t>(identity_.size())) {
    control_->arrivals.store(0, std::memory_order_relaxed);
    control_->round.store(round);
    if (control_->sleepers.load() > 0) futex_wake_all(control_->round);
  } else {
    wait_for_round(round, what);
  }
  former_stage_.reset();
}

void ShmGroup::wait_for_round(uint32_t round, const std::string& what) {
  const auto complete = [&] { return control_->round.load() == round; };
  for (int i = 0; i < spins_; ++i) {
    if (control_->round.load(std::memory_order_acquire) == round) return;
    // The awaited rank may be scheduled on this core.
    i % kSpinsBetweenYields == kSpinsBetweenYields - 1 ? static_cast<void>(::sched_yield()) : pause_core();
  }
  const auto deadline = Clock::now() + std::chrono::duration<double>(timeout_seconds_);
  for (;;) {
    control_->sleepers.fetch_add(1);
    if (!complete() && control_->failed.load() == 0) {
      futex_wait(control_->round, round - 1, kLookMilliseconds);
    }
    control_->sleepers.fetch_sub(1);
    if (complete()) return;
    if (control_->failed.load() != 0) follow_failure(what);
    const std::vector<int> lost = missing(round, true);
    if (complete()) return;  // it came, and then left
    if (!lost.empty()) give_up(lost, false, what);
    if (Clock::now() >= deadline) give_up(missing(round, false), true, what);
  }
}

/// The global ranks that have not come to this meeting; `only_lost`: those that never will.
std::vector<int> ShmGroup::missing(uint32_t round, bool only_lost) const {
  std::vector<int> ranks;
  for (int rank = 0; rank < identity_.size(); ++rank) {
    const int global = identity_.ranks[static_cast<size_t>(rank)];
    // Read in this order: a rank that has come and then left is not missing.
    const bool lost = member(rank).left.load() != 0 || !host_->present(global);
    if (member(rank).arrived.load() == round || (only_lost && !lost)) continue;
    ranks.push_back(global);
  }
  return ranks;
}

/// Makes the other ranks fail, too.
void ShmGroup::give_up(const std::vector<int>& silent, bool timeout, const std::string& what) {
  for (int rank = 0; rank < identity_.size(); ++rank) {
    const int global = identity_.ranks[static_cast<size_t>(rank)];
    if (std::ranges::find(silent, global) != silent.end()) member(rank).blamed.store(1);
  }
  publish_failure(timeout);
  fail(silent, timeout, timeout ? "timeout" : "it has ended or has given up", what);
}

void ShmGroup::abandon(bool timeout) {
  publish_failure(timeout);
  if (failure_) return;
  const auto kind = timeout ? ErrorKind::kTimeout : ErrorKind::kPeerLost;
  failure_ = std::make_exception_ptr(util::Error(kind, "this rank has given up the group"));
}

/// The first rank that gives up determines the kind of the failure.
void ShmGroup::publish_failure(bool timeout) {
  uint32_t none = 0;
  const auto kind = timeout ? ErrorKind::kTimeout : ErrorKind::kPeerLost;
  control_->failed.compare_exchange_strong(none, static_cast<uint32_t>(kind));
  futex_wake_all(control_->round);
}

/// Another rank of the group has given up.
void ShmGroup::follow_failure(const std::string& what) {
  const bool timeout = control_->failed.load() == static_cast<uint32_t>(ErrorKind::kTimeout);
  std::vector<int> silent;
  for (int rank = 0; rank < identity_.size(); ++rank) {
    if (member(rank).blamed.load() != 0) silent.push_back(identity_.ranks[static_cast<size_t>(rank)]);
  }
  if (std::erase(silent, identity_.global_rank()) > 0) {
    fail(silent, timeout, "the others have waited for this rank and given up", what);
  }
  fail(silent, timeout, "another rank has seen it first", what);
}

void ShmGroup::fail(const std::vector<int>& silent, bool timeout, const std::string& cause,
                    const std::string& what) {
  fail_group(
      identity_, what,
      {.timeout = timeout, .timeout_seconds = timeout_seconds_, .silent_ranks = silent, .cause = cause});
}

}  // namespace fsdp::comm
