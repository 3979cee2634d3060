// NCCL between the processes of one host. Collectives move and add what is there, in the order of their
// stream.

#include <nccl.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "nccl_arithmetic.h"
#include "nccl_group.h"
#include "standin.h"

struct ncclComm {
  standin::NcclGroup* group;
  std::atomic<bool> is_destroyed{false};
};

namespace standin {
namespace {

constexpr int kNcclVersion = 22809;
thread_local std::string last_error;

/// The memory of a collective, as the stand-in sees it.
struct Buffers {
  const char* input = nullptr;
  char* output = nullptr;
  Range ranges[2];
};

bool look_up(const char* who, const void* input, size_t input_bytes, void* output, size_t output_bytes,
             Buffers& buffers) {
  buffers.ranges[0] = {input, input_bytes, false};
  buffers.ranges[1] = {output, output_bytes, true};
  if (input_bytes > 0) buffers.input = static_cast<const char*>(standin_view(input, input_bytes, who));
  if (output_bytes > 0) buffers.output = static_cast<char*>(standin_view(output, output_bytes, who));
  return (input_bytes == 0 || buffers.input != nullptr) && (output_bytes == 0 || buffers.output != nullptr);
}

/// The faults of STANDIN_FAULT, by the number of the collective in this process.
struct Faults {
  long refused = standin_fault("nccl_refuse"), failing = standin_fault("nccl_fail"),
       late = standin_fault("nccl_late");
  long late_seconds = standin_fault("nccl_late_seconds");
};

/// Waits until somebody aborts the communicator.
void hang(NcclGroup& group) {
  constexpr useconds_t kLookAgain = 1000;
  while (!group.is_aborted()) ::usleep(kLookAgain);
}

long thread_cpu_ns() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return time.tv_sec * 1'000'000'000L + time.tv_nsec;
}

/// What follows in this scope a device would do, and here the thread does.
class OfTheDevice {
 public:
  OfTheDevice() : began_(thread_cpu_ns()) {}
  ~OfTheDevice() { standin_count("CPU ns of the stand-in in collectives", thread_cpu_ns() - began_); }

 private:
  long began_;
};

ncclResult_t collective(const char* name, ncclComm_t comm, cudaStream_t stream, const Buffers& buffers,
                        std::function<void(NcclGroup&)> body) {
  static const Faults faults;
  static std::atomic<long> issued{0};
  NcclGroup& group = *comm->group;
  int device = 0;
  cudaGetDevice(&device);
  if (device != group.device())
    standin_violation("a communicator of NCCL of another device than the current one");
  if (group.is_aborted() || comm->is_destroyed) {
    standin_violation("a collective on a communicator of NCCL that was taken down");
    return ncclInvalidUsage;
  }
  const long number = ++issued;
  if (number == faults.refused) {
    last_error = "injected by STANDIN_FAULT";
    return ncclSystemError;
  }
  const bool fails = number == faults.failing;
  const long delay = number == faults.late ? faults.late_seconds : 0;
  standin_count("collectives");
  const int error =
      standin_submit(name, stream, buffers.ranges, 2, [&group, fails, delay, body = std::move(body)] {
        const OfTheDevice accounting;
        if (delay > 0) ::sleep(static_cast<unsigned>(delay));
        if (fails) {
          group.fail();
          hang(group);
        } else {
          body(group);
        }
      });
  return error == 0 ? ncclSuccess : ncclUnhandledCudaError;
}

/// part(offset, bytes) for parts that fit into slots of `most` bytes, until one returns false.
template <typename Part>
void in_parts(size_t bytes, size_t most, const Part& part) {
  for (size_t at = 0; at < bytes; at += most) {
    if (!part(at, std::min(most, bytes - at))) return;
  }
}

/// Each rank adds up the part of the slots that begins at `offset`, in the order of ranks.
std::vector<char> sum_of_slots(NcclGroup& group, size_t offset, size_t bytes, ncclDataType_t type,
                               ncclRedOp_t op) {
  const char* const first = group.slot(0) + offset;
  std::vector<char> sum(first, first + bytes);
  for (int rank = 1; rank < group.ranks(); ++rank) {
    if (!combine(sum.data(), group.slot(rank) + offset, bytes / bytes_of(type), type, op)) {
      standin_violation("a reduction of NCCL of a type that the stand-in does not have");
    }
  }
  return sum;
}

ncclResult_t absent(const char* name) {
  standin_violation(name);
  return ncclInvalidUsage;
}

}  // namespace
}  // namespace standin

using namespace standin;

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
  *version = kNcclVersion;
  return ncclSuccess;
}
ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  std::random_device random;
  std::memset(id, 0, sizeof(*id));
  std::snprintf(id->internal, sizeof(id->internal), "/standin-%08x%08x", random(), random());
  return ncclSuccess;
}
const char* ncclGetErrorString(ncclResult_t result) {
  return result == ncclSuccess        ? "no error"
         : result == ncclRemoteError  ? "remote process exited or there was a network error"
         : result == ncclSystemError  ? "unhandled system error"
         : result == ncclInvalidUsage ? "invalid usage"
                                      : "error of the stand-in of NCCL";
}
const char* ncclGetLastError(ncclComm_t) { return last_error.c_str(); }

// --- Communicators

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank, ncclConfig_t*) {
  standin_count("ncclCommInitRankConfig");
  int device = 0;
  cudaGetDevice(&device);
  std::string why;
  NcclGroup* const group = NcclGroup::join(id.internal, rank, ranks, device, why);
  if (group == nullptr) {
    last_error = why;
    return why.starts_with("Duplicate") ? ncclInvalidUsage : ncclSystemError;
  }
  *comm = new ncclComm{.group = group};
  return ncclSuccess;
}
ncclResult_t ncclCommInitRank(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank) {
  return ncclCommInitRankConfig(comm, ranks, id, rank, nullptr);
}
ncclResult_t ncclCommInitRankScalable(ncclComm_t* comm, int ranks, int rank, int, ncclUniqueId* id,
                                      ncclConfig_t* config) {
  return ncclCommInitRankConfig(comm, ranks, *id, rank, config);
}
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  standin_count("ncclCommDestroy");
  if (comm != nullptr) comm->is_destroyed = true;
  return ncclSuccess;
}
ncclResult_t ncclCommFinalize(ncclComm_t) { return ncclSuccess; }
ncclResult_t ncclCommAbort(ncclComm_t comm) {
  standin_count("ncclCommAbort");
  if (comm != nullptr) comm->group->abort();
  return ncclSuccess;
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* result) {
  *result = comm->group->has_failed() ? ncclRemoteError : ncclSuccess;
  return ncclSuccess;
}
ncclResult_t ncclCommCount(ncclComm_t comm, int* count) {
  *count = comm->group->ranks();
  return ncclSuccess;
}
ncclResult_t ncclCommUserRank(ncclComm_t comm, int* rank) {
  *rank = comm->group->rank();
  return ncclSuccess;
}
ncclResult_t ncclCommRegister(ncclComm_t, void*, size_t, void** handle) {
  *handle = nullptr;
  return ncclSuccess;
}
ncclResult_t ncclCommDeregister(ncclComm_t, void*) { return ncclSuccess; }

// --- Collectives. libtorch issues one at a time, so groups of them change nothing.

ncclResult_t ncclGroupStart() { return ncclSuccess; }
ncclResult_t ncclGroupEnd() { return ncclSuccess; }
ncclResult_t ncclGroupSimulateEnd(ncclSimInfo_t*) { return ncclSuccess; }

ncclResult_t ncclAllGather(const void* input, void* output, size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream) {
  const size_t bytes = count * bytes_of(type);
  Buffers buffers;
  if (!look_up("ncclAllGather", input, bytes, output, bytes * comm->group->ranks(), buffers))
    return ncclInvalidArgument;
  return collective("ncclAllGather", comm, stream, buffers, [=](NcclGroup& group) {
    if (!group.agree("all-gather", bytes)) return;
    in_parts(bytes, NcclGroup::kSlotBytes, [&](size_t at, size_t part) {
      std::memcpy(group.slot(group.rank()), buffers.input + at, part);
      if (!group.barrier()) return false;
      for (int rank = 0; rank < group.ranks(); ++rank) {
        std::memcpy(buffers.output + rank * bytes + at, group.slot(rank), part);
      }
      return group.barrier();
    });
  });
}

ncclResult_t ncclReduceScatter(const void* input, void* output, size_t count, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  const size_t bytes = count * bytes_of(type);
  Buffers buffers;
  if (!look_up("ncclReduceScatter", input, bytes * comm->group->ranks(), output, bytes, buffers))
    return ncclInvalidArgument;
  return collective("ncclReduceScatter", comm, stream, buffers, [=](NcclGroup& group) {
    if (!group.agree("reduce-scatter", bytes)) return;
    const size_t most = NcclGroup::kSlotBytes / group.ranks() / 64 * 64;  // a slot has a part for each rank
    in_parts(bytes, most, [&](size_t at, size_t part) {
      for (int rank = 0; rank < group.ranks(); ++rank) {
        std::memcpy(group.slot(group.rank()) + rank * most, buffers.input + rank * bytes + at, part);
      }
      if (!group.barrier()) return false;
      const std::vector<char> sum = sum_of_slots(group, group.rank() * most, part, type, op);
      if (!group.barrier()) return false;
      std::memcpy(buffers.output + at, sum.data(), part);
      return true;
    });
  });
}

ncclResult_t ncclAllReduce(const void* input, void* output, size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream) {
  const size_t bytes = count * bytes_of(type);
  Buffers buffers;
  if (!look_up("ncclAllReduce", input, bytes, output, bytes, buffers)) return ncclInvalidArgument;
  return collective("ncclAllReduce", comm, stream, buffers, [=](NcclGroup& group) {
    if (!group.agree("all-reduce", bytes)) return;
    in_parts(bytes, NcclGroup::kSlotBytes, [&](size_t at, size_t part) {
      std::memcpy(group.slot(group.rank()), buffers.input + at, part);
      if (!group.barrier()) return false;
      const std::vector<char> sum = sum_of_slots(group, 0, part, type, op);
      if (!group.barrier()) return false;
      std::memcpy(buffers.output + at, sum.data(), part);
      return true;
    });
  });
}

ncclResult_t ncclBroadcast(const void* input, void* output, size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream) {
  const size_t bytes = count * bytes_of(type);
  Buffers buffers;
  const size_t read = comm->group->rank() == root ? bytes : 0;
  if (!look_up("ncclBroadcast", input, read, output, bytes, buffers)) return ncclInvalidArgument;
  return collective("ncclBroadcast", comm, stream, buffers, [=](NcclGroup& group) {
    if (!group.agree("broadcast", bytes)) return;
    in_parts(bytes, NcclGroup::kSlotBytes, [&](size_t at, size_t part) {
      if (group.rank() == root) std::memcpy(group.slot(root), buffers.input + at, part);
      if (!group.barrier()) return false;
      std::memcpy(buffers.output + at, group.slot(root), part);
      return group.barrier();
    });
  });
}
ncclResult_t ncclBcast(void* buffer, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                       cudaStream_t stream) {
  return ncclBroadcast(buffer, buffer, count, type, root, comm, stream);
}

// --- What libtorch refers to and nothing here calls.

ncclResult_t ncclCommInitAll(ncclComm_t*, int, const int*) { return absent("ncclCommInitAll"); }
ncclResult_t ncclCommSplit(ncclComm_t, int, int, ncclComm_t*, ncclConfig_t*) {
  return absent("ncclCommSplit");
}
ncclResult_t ncclCommShrink(ncclComm_t, int*, int, ncclComm_t*, ncclConfig_t*, int) {
  return absent("ncclCommShrink");
}
ncclResult_t ncclCommWindowRegister(ncclComm_t, void*, size_t, ncclWindow_t*, int) {
  return absent("ncclCommWindowRegister");
}
ncclResult_t ncclCommWindowDeregister(ncclComm_t, ncclWindow_t) { return absent("ncclCommWindowDeregister"); }
ncclResult_t ncclDevCommCreate() { return absent("ncclDevCommCreate"); }
ncclResult_t ncclDevCommDestroy() { return absent("ncclDevCommDestroy"); }
ncclResult_t ncclMemAlloc(void**, size_t) { return absent("ncclMemAlloc"); }
ncclResult_t ncclMemFree(void*) { return absent("ncclMemFree"); }
ncclResult_t ncclReduce(const void*, void*, size_t, ncclDataType_t, ncclRedOp_t, int, ncclComm_t,
                        cudaStream_t) {
  return absent("ncclReduce");
}
ncclResult_t ncclSend(const void*, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t) {
  return absent("ncclSend");
}
ncclResult_t ncclRecv(void*, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t) {
  return absent("ncclRecv");
}
ncclResult_t ncclAlltoAll(const void*, void*, size_t, ncclDataType_t, ncclComm_t, cudaStream_t) {
  return absent("ncclAlltoAll");
}
ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t*, void*, ncclDataType_t, ncclScalarResidence_t,
                                      ncclComm_t) {
  return absent("ncclRedOpCreatePreMulSum");
}
ncclResult_t ncclRedOpDestroy(ncclRedOp_t, ncclComm_t) { return absent("ncclRedOpDestroy"); }
}
