#pragma once

#include <unistd.h>

#include "tools/launch/options.h"

namespace fsdp::launch {

/// Destinations of the workers' output.
struct ConsoleDescriptors {
  int out = STDOUT_FILENO;
  int err = STDERR_FILENO;
};

/// Runs the program in options.nproc_per_node processes on this node, round after round, and returns the exit
/// code of the whole run (see judge()).
///
/// The first worker that fails, on any node, ends the round: the others get SIGTERM and,
/// shutdown_timeout_seconds later, SIGKILL. If a worker only lost a peer, that peer has half a second to end
/// first. If one was pre-empted, probably by a signal sent to it alone, the others get SIGTERM five seconds
/// later and no SIGKILL, because they may be saving. Then all start again, up to max_restarts times, unless the failure
/// would come again (may_end_differently()).
///
/// The signals of options.signals are passed on to all workers; all except SIGUSR1 and SIGUSR2 also start the
/// shutdown time-out and rule out a restart, and another SIGINT or SIGTERM, more than util::kOneRequest later,
/// kills at once. Rank 0 reads the
/// standard input of its launcher in the first round, unless that is a terminal; the others have none. While
/// this function runs, util::log_* writes to the console's stderr, between whole lines of the workers.
///
/// When it returns, throws or is killed, no process started by the workers is left (see OrphanGuard). Throws
/// Error: kUsage for bad options and for a program that cannot be executed, kIo for log files, kUnexpected when
/// the system refuses processes or pipes. The calling process must be single-threaded.
int launch(const LaunchOptions& options, ConsoleDescriptors console = {});

}  // namespace fsdp::launch
