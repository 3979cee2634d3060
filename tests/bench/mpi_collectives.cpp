// mpi_collectives [rounds]: collectives over MPI, against gloo, in processes that mpirun has started.
//
// For wholes of 256 KiB to 64 MiB (what an all-gather gives, what a reduce-scatter and an all-reduce take;
// float32), each round runs all of them in turn, so that a busy machine disturbs all alike. Both
// communicators are those of comm.backend, between whose calls is a barrier. Times are medians on rank 0.
// MASTER_ADDR is an address of rank 0's host, for gloo. tests/bench/mpi.py starts it on hosts that are
// network namespaces. Not a test: figures of a machine vary, so they are printed and not judged.

#include <ATen/Functions.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <iterator>
#include <vector>

#include "base/util/error.h"
#include "comm/gloo/gloo_communicator.h"
#include "comm/mpi/mpi_communicator.h"

namespace fsdp {
namespace {

using comm::Communicator;

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

/// Microseconds.
double timed(Communicator& communicator, const std::function<void()>& body) {
  using Clock = std::chrono::steady_clock;
  communicator.barrier({.unit = "bench"});
  const auto begin = Clock::now();
  body();
  return std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
}

void run(Communicator& gloo, Communicator& mpi, int64_t bytes, int rounds) {
  const int64_t numel = bytes / static_cast<int64_t>(sizeof(float));
  const at::Tensor whole = at::ones({numel}), part = at::ones({numel / gloo.world_size()});
  constexpr const char* kNames[] = {"all_gather", "reduce_scatter", "all_reduce"};
  std::vector<double> times[2 * std::size(kNames)];
  for (int round = -2; round < rounds; ++round) {
    std::vector<double> taken;
    for (Communicator* over : {&gloo, &mpi}) {
      taken.push_back(timed(*over, [&] { over->all_gather(whole, part, {.unit = "bench"})->wait(); }));
      taken.push_back(timed(*over, [&] { over->reduce_scatter(part, whole, {.unit = "bench"})->wait(); }));
      whole.fill_(1);
      taken.push_back(
          timed(*over, [&] { over->all_reduce(whole, comm::ReduceOp::kSum, {.unit = "bench"})->wait(); }));
      whole.fill_(1);
    }
    if (round < 0) continue;  // first touch
    for (size_t i = 0; i < taken.size(); ++i) times[i].push_back(taken[i]);
  }
  if (gloo.rank() > 0) return;
  for (size_t kind = 0; kind < std::size(kNames); ++kind) {
    const double slow = median(times[kind]), fast = median(times[kind + std::size(kNames)]);
    std::printf("%d ranks  %6.2f MiB  %-14s  gloo %9.1f us  mpi %9.1f us  %5.2f times as fast\n",
                gloo.world_size(), static_cast<double>(bytes) / (1 << 20), kNames[kind], slow, fast,
                slow / fast);
  }
  std::fflush(stdout);
}

}  // namespace
}  // namespace fsdp

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::max(1, std::atoi(argv[1])) : 31;
  return fsdp::util::run_guarded([&] {
    using namespace fsdp;
    at::set_num_threads(1);
    comm::MpiRun& process = comm::MpiRun::get();
    comm::LaunchEnvironment environment = process.environment();
    if (const char* address = std::getenv("MASTER_ADDR")) environment.master_addr = address;
    environment.local_world_size = 1;  // else gloo would listen at the loopback address
    if (environment.world_size == 1)
      fail(ErrorKind::kUsage, "expected 2 processes or more; start them with mpirun");
    const std::chrono::seconds timeout(60);
    const auto mpi = comm::make_mpi_communicator({&process, process.store(timeout), timeout});
    const auto gloo = comm::make_gloo_communicator(environment, {});
    for (int64_t bytes = 256 << 10; bytes <= 64 << 20; bytes *= 4) run(*gloo, *mpi, bytes, rounds);
    mpi->barrier({.unit = "end"});
    return 0;
  });
}
