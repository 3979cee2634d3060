// mpi_ranks FAULT: one of the processes that tests/comm/mpi/mpi_test.cpp starts by mpirun; all are in
// collectives until the last has the fault: killed, leaves, late, elsewhere. Says what it throws, and exits
// with the code of that.

#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <signal.h>

#include <chrono>
#include <string>
#include <thread>

#include "base/util/error.h"
#include "comm/mpi/mpi_communicator.h"

int main(int argc, char** argv) {
  using namespace fsdp;
  const std::string fault = argc > 1 ? argv[1] : "";
  return util::run_guarded([&] {
    at::set_num_threads(1);
    comm::MpiRun& run = comm::MpiRun::get();
    const std::chrono::milliseconds timeout(fault == "late" ? 1'000 : 20'000);
    const auto world = comm::make_mpi_communicator({&run, run.store(timeout), timeout});
    const bool last = world->rank() == world->world_size() - 1;
    at::Tensor value = at::ones({50'000});
    for (int round = 0; round < 1'000; ++round) {
      if (last && round == 20) {
        if (fault == "killed") ::raise(SIGKILL);
        if (fault == "leaves") fail(ErrorKind::kData, "the last rank has found something else");
        if (fault == "late") std::this_thread::sleep_for(std::chrono::seconds(4));
        if (fault == "elsewhere") world->broadcast(value, 0, {.unit = "another"})->wait();
      }
      world->all_reduce(value, comm::ReduceOp::kSum, {.unit = "test"})->wait();
      value.fill_(1);
    }
    return 0;
  });
}
