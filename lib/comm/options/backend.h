#pragma once

// Backend: how the processes of a run exchange data (comm.backend). A backend is one row of FSDP_BACKENDS and
// the folder that defines the row's function. Rows need no libtorch, so a config can be read without it.

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/util/enum_names.h"

namespace fsdp::comm {

/// A row has the member of enum Backend, the name for comm.backend, the function that connects the run (a
/// ConnectFunction, see comm/api/connect.h), and the members of BackendTraits that differ from their
/// defaults:
///
/// - kAuto is shared memory when all ranks are on one host and can share memory, kHierarchical when they are
///   on several hosts with the same number of ranks on each, 2 or more. Otherwise it is kGloo, with shared
///   memory or kHierarchical for groups whose ranks are placed like that. Tensors on GPUs: kNccl if each rank
///   has its own GPU.
/// - kShm: shared memory of one host.
/// - kGloo: gloo over TCP.
/// - kHierarchical, kHierarchicalMpi: shared memory inside each host, gloo or MPI between hosts.
/// - kMpi: the system's MPI, whose launcher has started the processes.
/// - kNccl: NCCL for tensors on GPUs; for tensors in host memory the same as kAuto.
#define FSDP_BACKENDS(ROW)                                                                                 \
  ROW(kAuto, "auto", connect_by_hosts, .shares_memory = true, .on_gpus = GpuTensors::kOverNcclIfPossible)  \
  ROW(kShm, "shm", connect_over_shm, .shares_memory = true)                                                \
  ROW(kGloo, "gloo", connect_over_gloo)                                                                    \
  ROW(kHierarchical, "hierarchical", connect_hierarchical, .shares_memory = true)                          \
  ROW(kHierarchicalMpi, "hierarchical_mpi", connect_hierarchical, .shares_memory = true, .over_mpi = true) \
  ROW(kMpi, "mpi", connect_over_mpi, .over_mpi = true)                                                     \
  ROW(kNccl, "nccl", connect_by_hosts, .shares_memory = true, .on_gpus = GpuTensors::kOverNccl)

#define FSDP_BACKEND_MEMBER(member, ...) member,
/// How the processes of a run exchange data (comm.backend). FSDP_BACKENDS describes each member.
enum class Backend { FSDP_BACKENDS(FSDP_BACKEND_MEMBER) };

/// The path of tensors on GPUs.
enum class GpuTensors { kThroughHostMemory, kOverNcclIfPossible, kOverNccl };

struct BackendTraits {
  bool shares_memory = false;  ///< whether ranks of one host may exchange data in memory that they share
  bool over_mpi = false;       ///< whether the ranks' numbers and the run's store are those of MPI
  GpuTensors on_gpus = GpuTensors::kThroughHostMemory;
};

struct BackendRow {
  Backend backend;
  std::string_view name;
  BackendTraits traits;
};

#define FSDP_BACKEND_ROW(member, name, connect, ...) BackendRow{Backend::member, name, {__VA_ARGS__}},
/// All backends, in the order of the enum.
constexpr auto backends() { return std::to_array({FSDP_BACKENDS(FSDP_BACKEND_ROW)}); }

inline constexpr auto kBackends = backends();
constexpr const BackendRow& row_of(Backend backend) { return kBackends[static_cast<size_t>(backend)]; }
constexpr bool is_over_mpi(Backend backend) { return row_of(backend).traits.over_mpi; }

constexpr auto enum_names(Backend) {
  std::array<util::EnumName<Backend>, kBackends.size()> names{};
  for (size_t i = 0; i < names.size(); ++i) names[i] = {kBackends[i].backend, kBackends[i].name};
  return names;
}

/// The backend that `given` is for ranks of which `ranks_of_host` are on each host (0: all), by the rule of
/// kAuto.
constexpr Backend backend_in_use(Backend given, int64_t world_size, int64_t ranks_of_host, bool on_device) {
  if (given != Backend::kAuto) return given;
  if (on_device) return Backend::kNccl;
  if (ranks_of_host == 0 || ranks_of_host >= world_size) return Backend::kShm;
  return ranks_of_host > 1 && world_size % ranks_of_host == 0 ? Backend::kHierarchical : Backend::kGloo;
}

}  // namespace fsdp::comm
