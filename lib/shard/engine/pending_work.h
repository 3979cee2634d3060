#pragma once

// Waiting for work that may have failed.

#include <exception>
#include <memory>
#include <utility>

#include "comm/api/communicator.h"

namespace fsdp::shard {

/// Waits for `work`, if there is any. Clears it first, because a wait() that throws must not be repeated.
inline void wait_for(std::unique_ptr<comm::Work>& work) {
  if (auto taken = std::move(work)) taken->wait();
}

/// Runs `wait` after a failed step, which reports the errors that `wait` throws.
template <typename Wait>
void ignore_errors_of(const Wait& wait) {
  try {
    wait();
  } catch (const std::exception&) {
  }
}

}  // namespace fsdp::shard
