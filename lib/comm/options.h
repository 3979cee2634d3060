#pragma once

#include <cstdint>
#include <string>

namespace fsdp::comm {

struct CommOptions {
  std::string backend = "auto";  ///< "auto" or "gloo"
  double timeout_seconds = 60;   ///< of a collective, and of the rendezvous
};

/// Named axes of the world; their product is the world size and -1, once, means "the rest".
struct MeshOptions {
  int64_t dcn = 1;    ///< replicas over the slow network
  int64_t data = -1;  ///< shards
  int64_t model = 1;
};

}  // namespace fsdp::comm
