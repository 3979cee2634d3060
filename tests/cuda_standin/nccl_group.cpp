#include "nccl_group.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string_view>

#include "standin.h"

namespace standin {
namespace {

using Clock = std::chrono::steady_clock;
constexpr size_t kHeaderBytes = 1 << 16;
constexpr std::chrono::seconds kPatience{60};
constexpr std::chrono::milliseconds kLookForPeers{500};
constexpr int kLooksBeforeSleep = 200;
constexpr useconds_t kSleep = 30;

/// The host of this process as NCCL sees it. Ranks of one host must not share a device.
uint64_t host_hash() {
  const char* const id = std::getenv("NCCL_HOSTID");
  return id != nullptr ? std::hash<std::string_view>()(id) : 0;
}

}  // namespace

NcclGroup* NcclGroup::join(const std::string& name, int rank, int ranks, int device, std::string& why) {
  static_assert(sizeof(Shared) <= kHeaderBytes);
  const size_t bytes = kHeaderBytes + static_cast<size_t>(ranks) * kSlotBytes;
  const int file = ::shm_open(name.c_str(), O_CREAT | O_RDWR, 0600);
  void* memory = MAP_FAILED;
  if (ranks <= kMostRanks && file >= 0 && ::ftruncate(file, static_cast<off_t>(bytes)) == 0) {
    memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  }
  if (file >= 0) ::close(file);
  if (memory == MAP_FAILED) {
    why = "no shared memory";
    return nullptr;
  }
  auto* group = new NcclGroup;  // never destroyed: a late stream may be in it when the process ends
  group->rank_ = rank;
  group->ranks_ = ranks;
  group->device_ = device;
  group->shared_ = static_cast<Shared*>(memory);
  group->data_ = static_cast<char*>(memory) + kHeaderBytes;
  Shared& shared = *group->shared_;
  shared.statements[rank].device = device;
  shared.statements[rank].host = host_hash();
  shared.statements[rank].process = ::getpid();
  ++shared.joined;
  const Clock::time_point end = Clock::now() + kPatience;
  while (shared.joined < ranks) {
    if (Clock::now() > end) {
      why = "timeout";
      return nullptr;
    }
    ::usleep(kSleep);
  }
  group->barrier();
  if (rank == 0) ::shm_unlink(name.c_str());
  for (int other = 0; other < ranks; ++other) {
    const Statement &own = shared.statements[rank], &theirs = shared.statements[other];
    if (other != rank && theirs.device == device && theirs.host == own.host) why = "Duplicate GPU detected";
  }
  return why.empty() ? group : nullptr;
}

bool NcclGroup::a_peer_is_gone() const {
  for (int other = 0; other < ranks_; ++other) {
    if (::kill(shared_->statements[other].process, 0) != 0 && errno == ESRCH) return true;
  }
  return false;
}

void NcclGroup::abort() {
  shared_->broken = true;
  aborted_ = true;
}

bool NcclGroup::barrier() {
  if (aborted_) return false;
  const int round = shared_->round;
  if (shared_->arrived.fetch_add(1) + 1 == ranks_ && !shared_->broken) {
    shared_->arrived = 0;
    ++shared_->round;
    return true;
  }
  Clock::time_point next_look = Clock::now() + kLookForPeers;
  for (int looks = 0; shared_->round == round; ++looks) {
    if (aborted_) return false;
    if (looks < kLooksBeforeSleep) continue;
    ::usleep(kSleep);
    if (Clock::now() < next_look) continue;
    next_look += kLookForPeers;
    // A collective that has lost a rank does not end: it is reported, and whoever hears of it aborts.
    if (!failed_ && a_peer_is_gone()) failed_ = true;
  }
  return true;
}

bool NcclGroup::agree(const char* operation, size_t bytes) {
  if (aborted_) return false;
  Statement& own = shared_->statements[rank_];
  std::snprintf(own.operation, sizeof(own.operation), "%s", operation);
  own.bytes = bytes;
  if (!barrier()) return false;
  if (shared_->broken) return barrier();  // the others no longer are where they said
  for (int other = 0; other < ranks_; ++other) {
    const Statement& theirs = shared_->statements[other];
    if (std::strcmp(theirs.operation, operation) == 0 && theirs.bytes == bytes) continue;
    const std::string what = std::string("ranks of NCCL disagree: ") + operation + " of " +
                             std::to_string(bytes) + " bytes here, " + theirs.operation + " of " +
                             std::to_string(theirs.bytes) + " on rank " + std::to_string(other);
    standin_violation(what.c_str());
  }
  return barrier();
}

}  // namespace standin
