#pragma once

// Ranks that are processes, one of which is ended or stopped while all are busy.

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

#include "base/util/error.h"
#include "support/connected_ranks.h"
#include "support/free_port.h"

namespace fsdp::testing {

struct ProcessRanks {
  int world_size = 3;
  double timeout_seconds = 60;
  int victim = -1;  ///< a rank; -1: the last
  int signal = SIGKILL;
  double most_seconds = 2;  ///< that others may take to notice
};

/// All-reduces in each process until it fails; the victim sends itself the signal after some. The exit code
/// of each rank: that of the error, when it names the victim and comes in time, 98 when it does not, 128 +
/// the signal where one ended the process. A stopped one is killed when all others have ended.
inline std::vector<int> codes_of_processes(const Connect& connect, ProcessRanks ranks) {
  if (ranks.victim < 0) ranks.victim = ranks.world_size - 1;
  const auto body = [&](int rank, int port) {
    at::set_num_threads(1);  // the threads of a team do not come along
    comm::LaunchEnvironment environment{rank, ranks.world_size, rank, ranks.world_size, "127.0.0.1", port};
    comm::CommOptions options;
    options.timeout_seconds = ranks.timeout_seconds;
    const auto communicator = connect(environment, options);
    at::Tensor value = communicator->allocate(50'000, at::kFloat).fill_(0);
    for (int round = 0;; ++round) {
      if (round == 20 && rank == ranks.victim) ::raise(ranks.signal);
      const auto begin = std::chrono::steady_clock::now();
      try {
        communicator->all_reduce(value, comm::ReduceOp::kSum, {.unit = "test"})->wait();
      } catch (const util::Error& error) {
        const std::string text = error.what();
        const bool names =
            text.find("all_reduce of test (other) failed on rank " + std::to_string(rank)) == 0 &&
            text.find("no answer from rank " + std::to_string(ranks.victim)) != std::string::npos;
        const bool in_time =
            std::chrono::steady_clock::now() - begin < std::chrono::duration<double>(ranks.most_seconds);
        if (!names || !in_time) std::fprintf(stderr, "%s\n", error.what());
        return names && in_time ? error.exit_code() : 98;
      }
    }
  };
  const int port = free_port();
  std::vector<pid_t> pids;
  for (int rank = 0; rank < ranks.world_size; ++rank) {
    const pid_t pid = ::fork();
    if (pid == 0) {
      int code = 99;
      try {
        code = body(rank, port);
      } catch (const std::exception& error) {
        std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
      }
      std::_Exit(code);
    }
    pids.push_back(pid);
  }
  // A zombie until it is asked for, so nobody's number is given away meanwhile.
  for (int rank = 0; rank < ranks.world_size; ++rank) {
    siginfo_t ended{};
    if (rank != ranks.victim)
      ::waitid(P_PID, static_cast<id_t>(pids[static_cast<size_t>(rank)]), &ended, WEXITED | WNOWAIT);
  }
  ::kill(pids[static_cast<size_t>(ranks.victim)], SIGKILL);
  std::vector<int> codes;
  for (pid_t pid : pids) {
    int status = 0;
    ::waitpid(pid, &status, 0);
    codes.push_back(WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
  }
  return codes;
}

}  // namespace fsdp::testing
