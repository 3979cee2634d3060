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
#include <utility>
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
  std::vector<Range> ranges;
};

/// A send or a receive.
struct Transfer {
  ncclComm_t comm;
  cudaStream_t stream;
  int peer;
  Range range;  ///< a receive writes it
  char* data;
};

/// The transfers of a thread's groups, which begin where the outermost group ends.
thread_local std::vector<Transfer> grouped;
thread_local int open_groups = 0;

bool look_up(const char* who, const void* input, size_t input_bytes, void* output, size_t output_bytes,
             Buffers& buffers) {
  buffers.ranges = {{input, input_bytes, false}, {output, output_bytes, true}};
  if (input_bytes > 0) buffers.input = static_cast<const char*>(standin_view(input, input_bytes, who));
  if (output_bytes > 0) buffers.output = static_cast<char*>(standin_view(output, output_bytes, who));
  return (input_bytes == 0 || buffers.input != nullptr) && (output_bytes == 0 || buffers.output != nullptr);
}

/// The faults of STANDIN_FAULT, by the number of the collective in this process, or of the communicator that
/// it connects.
struct Faults {
  long refused = standin_fault("nccl_refuse"), failing = standin_fault("nccl_fail"),
       late = standin_fault("nccl_late"), late_to_connect = standin_fault("nccl_connect");
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

ncclResult_t collective(const char* name, ncclComm_t comm, cudaStream_t stream,
                        const std::vector<Range>& ranges, std::function<void(NcclGroup&)> body) {
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
  // As NCCL does, the first collective connects the ranks, in the calling thread.
  if (!group.is_connected()) {
    static std::atomic<long> connecting{0};
    if (++connecting == faults.late_to_connect) ::sleep(static_cast<unsigned>(faults.late_seconds));
    if (!group.connect()) {
      last_error = "the communicator was aborted while it connected";
      return ncclInternalError;
    }
  }
  const bool fails = number == faults.failing;
  const long delay = number == faults.late ? faults.late_seconds : 0;
  standin_count("collectives");
  const int error = standin_submit(name, stream, ranges.data(), static_cast<int>(ranges.size()),
                                   [&group, fails, delay, body = std::move(body)] {
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

/// The bytes that a rank sends to each rank, and receives from it.
struct Transfers {
  uint64_t sent[NcclGroup::kMostRanks], received[NcclGroup::kMostRanks];
};

/// Rank `peer` and this one must say the same of what goes from one to the other.
void compare(uint64_t sent, uint64_t received, const std::string& direction) {
  if (sent == received) return;
  const std::string what = "ranks of NCCL disagree: " + std::to_string(sent) + " bytes are sent and " +
                           std::to_string(received) + " received " + direction;
  standin_violation(what.c_str());
}

/// Sends and receives of a group. All ranks of the communicator must have one.
void exchange(NcclGroup& group, const std::vector<Transfer>& transfers) {
  if (!group.agree("sends and receives", 0)) return;
  const int own_rank = group.rank();
  Transfers own{};
  for (const Transfer& transfer : transfers) {
    uint64_t& bytes = (transfer.range.writes ? own.received : own.sent)[transfer.peer];
    if (bytes > 0) standin_violation("two transfers from one rank to another in one group of NCCL");
    bytes = transfer.range.bytes;
  }
  std::memcpy(group.slot(own_rank), &own, sizeof(own));
  if (!group.barrier()) return;
  uint64_t most = 0;
  Transfers expected = own;  // by the others
  for (int rank = 0; rank < group.ranks(); ++rank) {
    Transfers theirs;
    std::memcpy(&theirs, group.slot(rank), sizeof(theirs));
    most = std::max(most, *std::max_element(theirs.sent, theirs.sent + group.ranks()));
    compare(theirs.sent[own_rank], own.received[rank], "from rank " + std::to_string(rank));
    compare(own.sent[rank], theirs.received[own_rank], "by rank " + std::to_string(rank));
    expected.received[rank] = std::min(own.received[rank], theirs.sent[own_rank]);
  }
  if (!group.barrier()) return;
  const size_t place = NcclGroup::kSlotBytes / group.ranks() / 64 * 64;  // a slot has one for each receiver
  in_parts(most, place, [&](size_t at, size_t part) {
    const auto left = [&](uint64_t bytes) { return std::min(part, bytes - std::min<uint64_t>(at, bytes)); };
    for (const Transfer& transfer : transfers) {
      if (transfer.range.writes) continue;
      std::memcpy(group.slot(own_rank) + transfer.peer * place, transfer.data + at,
                  left(transfer.range.bytes));
    }
    if (!group.barrier()) return false;
    for (const Transfer& transfer : transfers) {
      if (!transfer.range.writes) continue;
      std::memcpy(transfer.data + at, group.slot(transfer.peer) + own_rank * place,
                  left(expected.received[transfer.peer]));
    }
    return group.barrier();
  });
}

ncclResult_t begin_transfers() {
  if (open_groups > 0 || grouped.empty()) return ncclSuccess;
  const std::vector<Transfer> transfers = std::exchange(grouped, {});
  const Transfer& first = transfers.front();
  std::vector<Range> ranges;
  for (const Transfer& transfer : transfers) {
    ranges.push_back(transfer.range);
    if (transfer.comm == first.comm && transfer.stream == first.stream) continue;
    standin_violation("transfers of several communicators or streams in one group of NCCL");
    return ncclInvalidUsage;
  }
  return collective("sends and receives of NCCL", first.comm, first.stream, ranges,
                    [transfers](NcclGroup& group) { exchange(group, transfers); });
}

ncclResult_t transfer(const char* name, const Range& range, int peer, ncclComm_t comm, cudaStream_t stream) {
  standin_count(name);
  char* const data =
      range.bytes > 0 ? static_cast<char*>(standin_view(range.data, range.bytes, name)) : nullptr;
  if (range.bytes > 0 && data == nullptr) return ncclInvalidArgument;
  if (peer < 0 || peer >= comm->group->ranks()) {
    standin_violation("a transfer of NCCL with a rank that does not exist");
    return ncclInvalidArgument;
  }
  grouped.push_back({comm, stream, peer, range, data});
  return begin_transfers();
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

// --- Collectives. libtorch issues one at a time, so groups of them change nothing; those of transfers do.

ncclResult_t ncclGroupStart() {
  ++open_groups;
  return ncclSuccess;
}
ncclResult_t ncclGroupEnd() {
  if (open_groups == 0) {
    standin_violation("ncclGroupEnd() without ncclGroupStart()");
    return ncclInvalidUsage;
  }
  --open_groups;
  return begin_transfers();
}
ncclResult_t ncclGroupSimulateEnd(ncclSimInfo_t*) { return ncclSuccess; }

ncclResult_t ncclAllGather(const void* input, void* output, size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream) {
  const size_t bytes = count * bytes_of(type);
  Buffers buffers;
  if (!look_up("ncclAllGather", input, bytes, output, bytes * comm->group->ranks(), buffers))
    return ncclInvalidArgument;
  return collective("ncclAllGather", comm, stream, buffers.ranges, [=](NcclGroup& group) {
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
  return collective("ncclReduceScatter", comm, stream, buffers.ranges, [=](NcclGroup& group) {
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
  return collective("ncclAllReduce", comm, stream, buffers.ranges, [=](NcclGroup& group) {
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
  return collective("ncclBroadcast", comm, stream, buffers.ranges, [=](NcclGroup& group) {
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

ncclResult_t ncclSend(const void* buffer, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return transfer("ncclSend", {buffer, count * bytes_of(type), false}, peer, comm, stream);
}
ncclResult_t ncclRecv(void* buffer, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return transfer("ncclRecv", {buffer, count * bytes_of(type), true}, peer, comm, stream);
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
ncclResult_t ncclAlltoAll(const void*, void*, size_t, ncclDataType_t, ncclComm_t, cudaStream_t) {
  return absent("ncclAlltoAll");
}
ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t*, void*, ncclDataType_t, ncclScalarResidence_t,
                                      ncclComm_t) {
  return absent("ncclRedOpCreatePreMulSum");
}
ncclResult_t ncclRedOpDestroy(ncclRedOp_t, ncclComm_t) { return absent("ncclRedOpDestroy"); }
}
