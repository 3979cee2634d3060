#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace fsdp::comm {

struct CommOptions {
  /// "shm", "hierarchical", "gloo" or "auto": shm when all ranks are on one host and can share memory,
  /// hierarchical when they are on several hosts with several each, the same number on all, else gloo.
  std::string backend = "auto";
  double timeout_seconds = 60;  ///< of a collective, and of the rendezvous

  std::chrono::milliseconds timeout() const {
    return std::chrono::milliseconds(static_cast<int64_t>(timeout_seconds * 1000));
  }
};

/// Named axes of the world; their product is the world size and -1, once, means "the rest".
struct MeshOptions {
  int64_t dcn = 1;    ///< replicas over the slow network
  int64_t data = -1;  ///< shards
  int64_t model = 1;
};

}  // namespace fsdp::comm
