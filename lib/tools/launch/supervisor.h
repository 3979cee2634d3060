#pragma once

#include <unistd.h>

#include "tools/launch/options.h"

namespace fsdp::launch {

/// Destinations of the workers' output.
struct ConsoleDescriptors {
  int out = STDOUT_FILENO;
  int err = STDERR_FILENO;
};

/// Runs the program in options.nproc_per_node processes on this node, round after round. Returns the exit
/// code of the whole run (see judge()).
///
/// The first worker that fails, on any node, ends the round: the other workers get SIGTERM and,
/// shutdown_timeout_seconds later, SIGKILL. If a worker only lost a peer, that peer has half a second to end
/// first. If a worker was pre-empted, probably by a signal sent to it alone, the others get SIGTERM five
/// seconds later and no SIGKILL, because they may be saving. Then all workers start again, up to max_restarts
/// times, unless the failure would recur (may_end_differently()).
///
/// The signals of options.signals are passed on to all workers. All except SIGUSR1 and SIGUSR2 also start the
/// shutdown time-out and rule out a restart. Another SIGINT or SIGTERM, more than util::kOneRequest later,
/// kills at once. In the first round, rank 0 reads the standard input of its launcher unless that is a
/// terminal; other workers have no input. While this function runs, util::log_* writes to the console's
/// stderr, between whole lines of the workers.
///
/// No process started by the workers is left after the function returns, throws or is killed (see
/// OrphanGuard). Throws Error(kUsage) for bad options and for a program that cannot be executed, kIo for log
/// files, and kUnexpected if the system refuses processes or pipes. Requires: the calling process is
/// single-threaded.
int launch(const LaunchOptions& options, ConsoleDescriptors console = {});

}  // namespace fsdp::launch
