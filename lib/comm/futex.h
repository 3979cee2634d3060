#pragma once

// Sleeping until a word of shared memory changes (futex(2)); across processes.

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <cstdint>

namespace fsdp::comm {

static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t) &&
              std::atomic<uint32_t>::is_always_lock_free);

/// Returns when `word` is not `value`, after a wake, after the time, or for no reason: look again.
inline void futex_wait(std::atomic<uint32_t>& word, uint32_t value, int64_t milliseconds) {
  const timespec most{.tv_sec = milliseconds / 1000, .tv_nsec = milliseconds % 1000 * 1'000'000};
  ::syscall(SYS_futex, &word, FUTEX_WAIT, value, &most, nullptr, 0);
}

inline void futex_wake_all(std::atomic<uint32_t>& word) {
  ::syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace fsdp::comm
