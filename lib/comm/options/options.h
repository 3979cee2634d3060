#pragma once

#include <chrono>
#include <cstdint>

#include "base/util/enum_names.h"
#include "comm/options/backend.h"

namespace fsdp::comm {

/// Options of make_communicator().
struct CommOptions {
  Backend backend = Backend::kAuto;
  double timeout_seconds = 60;  ///< limit for each collective, and for the rendezvous

  std::chrono::milliseconds timeout() const {
    return std::chrono::milliseconds(static_cast<int64_t>(timeout_seconds * 1000));
  }
};

/// How the ranks of a context group obtain each other's keys and values (model/parallel/context_attention.h).
enum class ContextAttention {
  kGather,  ///< an all-gather in each layer
  kRing,    ///< one rank's part after another, round a ring, beside the compute
};
constexpr auto enum_names(ContextAttention) {
  return std::to_array<util::EnumName<ContextAttention>>(
      {{ContextAttention::kGather, "gather"}, {ContextAttention::kRing, "ring"}});
}

/// Sizes of the named axes of the world. Their product is the world size; one size may be -1, "the rest".
struct MeshOptions {
  int64_t dcn = 1;      ///< replicas over the slow network
  int64_t data = -1;    ///< shards
  int64_t context = 1;  ///< parts of each sequence
  int64_t model = 1;    ///< parts of each layer
  util::Named<ContextAttention> context_attention = ContextAttention::kRing;
  bool sequence_parallel = true;  ///< used where model > 1; see nn::ParallelOptions
  /// Ranks of each host, which are consecutive; 0: all ranks are on one host. No key of a config: a program
  /// knows it from its launcher or, for a plan, from its machines.
  int64_t ranks_of_host = 0;
};

}  // namespace fsdp::comm
