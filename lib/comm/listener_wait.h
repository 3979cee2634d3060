#pragma once

#include <chrono>
#include <string>

namespace fsdp::comm {

/// Waits until somebody listens at this host and port, looking every few milliseconds, at most until
/// `deadline`. Returns whether that is so by then; also true when it cannot be told, for which the program
/// that connects next has the better words: the name is unknown, say, or the host does not answer.
///
/// c10d's store waits 0.25 to 0.75 s when it finds nobody, and each time longer (c10d/Backoff.hpp), which
/// most starts would wait for a process that came some milliseconds later.
bool wait_for_listener(const std::string& host, int port, std::chrono::steady_clock::time_point deadline);

}  // namespace fsdp::comm
