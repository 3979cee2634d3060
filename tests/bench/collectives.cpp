// collectives [rounds]: all-gather and reduce-scatter through shared memory, against gloo and against memcpy.
//
// For worlds of 2 and of 4 processes and wholes of 256 KiB to 64 MiB (what an all-gather gives, what a
// reduce-scatter takes; float32), each round runs all of them in turn, so that a busy machine disturbs all
// alike. The buffers are those that the communicator allocates, the all-gather's input lies in its output,
// and the memcpy is of the bytes that the all-gather has to fetch from others, in all processes at once.
// Times are medians on rank 0, from a barrier to its end of the collective. Not a test: figures of a machine
// vary, so they are printed and not judged.

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
#include <vector>

#include "comm/gloo_communicator.h"
#include "comm/shm_communicator.h"
#include "support/free_port.h"
#include "util/error.h"

namespace fsdp {
namespace {

using comm::Communicator;

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

struct Buffers {
  at::Tensor whole, own, part;

  Buffers(Communicator& communicator, int64_t numel)
      : whole(communicator.allocate(numel, at::kFloat).fill_(1)),
        own(whole.narrow(0, communicator.rank() * (numel / communicator.world_size()),
                         numel / communicator.world_size())),
        part(at::ones({numel / communicator.world_size()})) {}
};

class Bench {
 public:
  Bench(Communicator& gloo, Communicator& shm, int rounds) : gloo_(gloo), shm_(shm), rounds_(rounds) {}

  void run(int64_t bytes) {
    const int64_t numel = bytes / static_cast<int64_t>(sizeof(float));
    const int64_t fetched = bytes / gloo_.world_size() * (gloo_.world_size() - 1);
    Buffers slow(gloo_, numel), fast(shm_, numel);
    at::Tensor source = at::ones({numel}), target = at::ones({numel});
    std::vector<double> times[5];
    for (int round = -2; round < rounds_; ++round) {
      const double taken[] = {
          timed([&] { gloo_.all_gather(slow.whole, slow.own, {.unit = "bench"})->wait(); }),
          timed([&] { shm_.all_gather(fast.whole, fast.own, {.unit = "bench"})->wait(); }),
          timed([&] { std::memcpy(target.data_ptr(), source.data_ptr(), static_cast<size_t>(fetched)); }),
          timed([&] { gloo_.reduce_scatter(slow.part, slow.whole, {.unit = "bench"})->wait(); }),
          timed([&] { shm_.reduce_scatter(fast.part, fast.whole, {.unit = "bench"})->wait(); })};
      if (round < 0) continue;  // first touch
      for (size_t i = 0; i < 5; ++i) times[i].push_back(taken[i]);
    }
    if (gloo_.rank() > 0) return;
    const double copy = median(times[2]);
    for (size_t i : {size_t{0}, size_t{3}}) {
      const double over_gloo = median(times[i]), over_shm = median(times[i + 1]);
      std::printf(
          "%d ranks  %8.2f MiB  %-14s  gloo %9.1f us  shm %8.1f us  %5.1f times as fast  %5.2f GB/s"
          "  %5.2f of a memcpy's time (%.1f us)\n",
          gloo_.world_size(), static_cast<double>(bytes) / (1 << 20),
          i == 0 ? "all_gather" : "reduce_scatter", over_gloo, over_shm, over_gloo / over_shm,
          static_cast<double>(fetched) / over_shm / 1e3, over_shm / copy, copy);
    }
    std::fflush(stdout);
  }

 private:
  double timed(const std::function<void()>& body) {
    using Clock = std::chrono::steady_clock;
    shm_.barrier({.unit = "bench"});
    const auto begin = Clock::now();
    body();
    return std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
  }

  Communicator &gloo_, &shm_;
  int rounds_;
};

void run_rank(int rank, int world_size, int port, int rounds) {
  at::set_num_threads(1);
  comm::LaunchEnvironment environment{rank, world_size, rank, world_size, "127.0.0.1", port};
  auto store = comm::join_run_store(environment, std::chrono::seconds(60));
  auto attempt = comm::try_shm_communicator(environment, {}, store);
  FSDP_CHECK(attempt.communicator, attempt.obstacle);
  auto gloo = comm::make_gloo_communicator(environment, {}, store);
  Bench bench(*gloo, *attempt.communicator, rounds);
  for (int64_t bytes = 256 << 10; bytes <= 64 << 20; bytes *= 4) bench.run(bytes);
  attempt.communicator->barrier({.unit = "end"});
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
