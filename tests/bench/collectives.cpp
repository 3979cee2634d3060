// collectives [rounds]: all-gather, reduce-scatter and shift through shared memory, against gloo and memcpy.
//
// "c10d" is gloo as PyTorch uses it (ProcessGroupGloo's _allgather_base, _reduce_scatter_base, which is an
// all-reduce, and its send and recv), "gloo" is comm.backend = "gloo", which exchanges the parts and adds
// them up itself.
//
// For worlds of 2 and of 4 processes and wholes of 256 KiB to 64 MiB (what an all-gather gives, what a
// reduce-scatter takes; float32), each round runs all of them in turn, so that a busy machine disturbs all
// alike. An all-gather's input is a shard of its own, as in training in fp32; its output over shared memory
// is taken anew each time, as for a unit, and common to the ranks (comm/api/communicator.h). Other buffers
// are those that the communicator allocates. The memcpy is of the bytes that an all-gather without common
// memory fetches from others, in all processes at once. A shift is of as many. Times are medians on rank 0,
// from a barrier to its end of the collective. "moved" is what all ranks' copies and additions over shared
// memory have read and written, over the least that can be: each part of an all-gather is read and written
// once, and of a reduce-scatter every input is read and every output written once, as of a shift. Not a test:
// figures of a machine vary, so they are printed and not judged.

#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <iterator>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <vector>

#include "base/util/error.h"
#include "comm/api/communicator.h"
#include "comm/api/memory_operations.h"
#include "comm/backends/connect_group.h"
#include "comm/gloo/gloo_communicator.h"
#include "support/free_port.h"

namespace fsdp {
namespace {

using comm::Communicator;

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

struct Buffers {
  at::Tensor whole, shard, part, sent, received;

  Buffers(Communicator& communicator, int64_t numel)
      : whole(communicator.allocate(numel, at::kFloat).fill_(1)),
        shard(at::ones({numel / communicator.world_size()})),
        part(at::ones({numel / communicator.world_size()})),
        sent(whole.narrow(0, 0, numel - part.numel())),
        received(communicator.allocate(sent.numel(), at::kFloat).fill_(1)) {}
};

/// As shard::Unit does it.
void gather_in_common_memory(Communicator& communicator, const at::Tensor& shard) {
  const int64_t numel = shard.numel() * communicator.world_size();
  at::Tensor whole;
  const auto fill = [&](c10::DataPtr memory) {
    if (!memory) {
      whole = communicator.allocate(numel, at::kFloat);
      return;
    }
    const auto nbytes = static_cast<size_t>(numel) * sizeof(float);
    c10::Storage storage(c10::Storage::use_byte_size_t(), nbytes, std::move(memory));
    whole = at::empty({0}, at::kFloat).set_(storage, 0, {numel}, {1});
  };
  communicator.common_memory()->enqueue_with_memory(4 * numel, {.unit = "bench"}, fill)->wait();
  communicator.all_gather(whole, shard, {.unit = "bench"})->wait();
}

class Bench {
 public:
  Bench(c10d::ProcessGroupGloo& c10d, Communicator& gloo, Communicator& shm, int rounds)
      : c10d_(c10d), gloo_(gloo), shm_(shm), rounds_(rounds) {}

  void run(int64_t bytes) {
    const int64_t numel = bytes / static_cast<int64_t>(sizeof(float));
    const int64_t fetched = bytes / gloo_.world_size() * (gloo_.world_size() - 1);
    Buffers slow(gloo_, numel), fast(shm_, numel);
    at::Tensor source = at::ones({numel}), target = at::ones({numel});
    std::vector<double> times[kContestants];
    for (int round = -2; round < rounds_; ++round) {
      const double taken[] = {
          timed([&] { c10d_._allgather_base(slow.whole, slow.shard)->wait(); }),
          timed([&] { gloo_.all_gather(slow.whole, slow.shard, {.unit = "bench"})->wait(); }),
          timed([&] { gather_in_common_memory(shm_, fast.shard); }, &moved_[0]),
          timed([&] { c10d_._reduce_scatter_base(slow.part, slow.whole)->wait(); }),
          timed([&] { gloo_.reduce_scatter(slow.part, slow.whole, {.unit = "bench"})->wait(); }),
          timed([&] { shm_.reduce_scatter(fast.part, fast.whole, {.unit = "bench"})->wait(); }, &moved_[1]),
          timed([&] { shift_over_c10d(slow); }),
          timed([&] { gloo_.shift(slow.received, slow.sent, {.unit = "bench"})->wait(); }),
          timed([&] { shm_.shift(fast.received, fast.sent, {.unit = "bench"})->wait(); }, &moved_[2]),
          timed([&] { std::memcpy(target.data_ptr(), source.data_ptr(), static_cast<size_t>(fetched)); })};
      if (round < 0) continue;  // first touch
      for (size_t i = 0; i < kContestants; ++i) times[i].push_back(taken[i]);
    }
    const int64_t world = gloo_.world_size();
    const at::Tensor moved = at::tensor({moved_[0], moved_[1], moved_[2]}, at::kLong);
    shm_.all_reduce(moved, comm::ReduceOp::kSum, {.unit = "bench"})->wait();
    if (gloo_.rank() > 0) return;
    const int64_t least[] = {2 * bytes, (world + 1) * bytes, 2 * world * fetched};
    constexpr const char* kNames[] = {"all_gather", "reduce_scatter", "shift"};
    const double copy = median(times[kContestants - 1]);
    for (size_t kind = 0; kind < std::size(kNames); ++kind) {
      const size_t i = 3 * kind;
      const double c10d = median(times[i]), gloo = median(times[i + 1]), shm = median(times[i + 2]);
      std::printf(
          "%d ranks  %6.2f MiB  %-14s  c10d %9.1f us  gloo %9.1f us  shm %8.1f us: %5.1f and %5.1f times as"
          " fast, %5.2f of a memcpy's time (%.1f us), moved %.2f of the least\n",
          gloo_.world_size(), static_cast<double>(bytes) / (1 << 20), kNames[kind], c10d, gloo, shm,
          c10d / shm, gloo / shm, shm / copy, copy,
          moved.data_ptr<int64_t>()[kind] / static_cast<double>(least[kind]));
    }
    std::fflush(stdout);
  }

 private:
  void shift_over_c10d(const Buffers& buffers) {
    const int rank = gloo_.rank(), world = gloo_.world_size();
    std::vector<at::Tensor> received{buffers.received}, sent{buffers.sent};
    const auto receive = c10d_.recv(received, (rank + world - 1) % world, 0);
    const auto send = c10d_.send(sent, (rank + 1) % world, 0);
    receive->wait();
    send->wait();
  }

  /// Microseconds; `moved` becomes the bytes that it has moved.
  double timed(const std::function<void()>& body, int64_t* moved = nullptr) {
    using Clock = std::chrono::steady_clock;
    shm_.barrier({.unit = "bench"});
    const comm::MovedBytes before = comm::moved_bytes();
    const auto begin = Clock::now();
    body();
    const double time = std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
    const comm::MovedBytes after = comm::moved_bytes();
    if (moved != nullptr) *moved = after.read - before.read + after.written - before.written;
    return time;
  }

  static constexpr size_t kContestants = 10;
  c10d::ProcessGroupGloo& c10d_;
  Communicator &gloo_, &shm_;
  int rounds_;
  int64_t moved_[3] = {};  ///< by this rank in the last of each kind over shared memory
};

void run_rank(int rank, int world_size, int port, int rounds) {
  at::set_num_threads(1);
  comm::LaunchEnvironment environment{rank, world_size, rank, world_size, "127.0.0.1", port};
  auto store = comm::join_run_store(environment, std::chrono::seconds(60));
  auto meeting = comm::HostRanks::meet(environment, store, {});
  FSDP_CHECK(meeting.ranks && meeting.apart.empty(), meeting.apart, meeting.obstacle);
  auto shm = comm::connect_group({meeting.ranks, {.timeout = comm::CommOptions().timeout()}},
                                 comm::run_identity(environment), "run");
  auto gloo = comm::make_gloo_communicator(environment, {}, store);
  auto options = c10d::ProcessGroupGloo::Options::create(std::chrono::seconds(60));
  options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1"));
  auto c10d = c10::make_intrusive<c10d::ProcessGroupGloo>(
      c10::make_intrusive<c10d::PrefixStore>("c10d", store), rank, world_size, options);
  Bench bench(*c10d, *gloo, *shm, rounds);
  for (int64_t bytes = 256 << 10; bytes <= 64 << 20; bytes *= 4) bench.run(bytes);
  shm->barrier({.unit = "end"});
}

}  // namespace
}  // namespace fsdp

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::max(1, std::atoi(argv[1])) : 31;
  setenv("TORCH_FR_BUFFER_SIZE", "0", 1);
  for (int world_size : {2, 4}) {
    const int port = fsdp::testing::free_port();
    for (int rank = 0; rank < world_size; ++rank) {
      if (fork() == 0) {
        const int code = fsdp::util::run_guarded([&] {
          fsdp::run_rank(rank, world_size, port, rounds);
          return 0;
        });
        std::_Exit(code);
      }
    }
    int status = 0;
    while (wait(&status) > 0) {
      if (status != 0) return 1;
    }
  }
  return 0;
}
