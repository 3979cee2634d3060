#pragma once

#include <chrono>
#include <cstdint>

#include "base/util/enum_names.h"

namespace fsdp::comm {

/// How the processes of a run exchange data (comm.backend).
enum class Backend {
  /// kShm when all ranks are on one host and can share memory, kHierarchical when they are on several hosts
  /// with the same number of ranks on each, 2 or more; else kGloo, with kShm or kHierarchical for groups of ranks
  /// whose places allow it. For tensors on GPUs: kNccl if each rank has a separate GPU.
  kAuto,
  kShm,              ///< shared memory of one host
  kGloo,             ///< gloo over TCP
  kHierarchical,     ///< shared memory inside each host, gloo between hosts
  kHierarchicalMpi,  ///< shared memory inside each host, MPI between hosts
  kMpi,              ///< the system's MPI, whose launcher has started the processes
  kNccl,             ///< NCCL for tensors on GPUs; for tensors in host memory as kAuto
};

constexpr auto enum_names(Backend) {
  return std::to_array<util::EnumName<Backend>>({{Backend::kAuto, "auto"},
                                                 {Backend::kShm, "shm"},
                                                 {Backend::kGloo, "gloo"},
                                                 {Backend::kHierarchical, "hierarchical"},
                                                 {Backend::kHierarchicalMpi, "hierarchical_mpi"},
                                                 {Backend::kMpi, "mpi"},
                                                 {Backend::kNccl, "nccl"}});
}

constexpr bool is_over_mpi(Backend backend) {
  return backend == Backend::kMpi || backend == Backend::kHierarchicalMpi;
}

/// For make_communicator().
struct CommOptions {
  Backend backend = Backend::kAuto;
  double timeout_seconds = 60;  ///< of a collective, and of the rendezvous

  std::chrono::milliseconds timeout() const {
    return std::chrono::milliseconds(static_cast<int64_t>(timeout_seconds * 1000));
  }
};

/// How the ranks of a context group come to the keys and values of each other (model/parallel/context_attention.h).
enum class ContextAttention {
  kGather,  ///< all at once, by an all-gather in each layer
  kRing,    ///< those of one rank after another, round a ring, beside the compute
};
constexpr auto enum_names(ContextAttention) {
  return std::to_array<util::EnumName<ContextAttention>>(
      {{ContextAttention::kGather, "gather"}, {ContextAttention::kRing, "ring"}});
}

/// Named axes of the world; their product is the world size and -1, once, means "the rest".
struct MeshOptions {
  int64_t dcn = 1;      ///< replicas over the slow network
  int64_t data = -1;    ///< shards
  int64_t context = 1;  ///< parts of each sequence
  int64_t model = 1;    ///< parts of each layer
  util::Named<ContextAttention> context_attention = ContextAttention::kRing;
  bool sequence_parallel = true;  ///< with model: nn::ParallelOptions
};

}  // namespace fsdp::comm
