#pragma once

// The run's key-value store, by which its processes find each other before they are connected.

#include <chrono>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "comm/launch_environment.h"

namespace fsdp::comm {

using RunStore = c10::intrusive_ptr<c10d::Store>;

/// Joins the store at MASTER_ADDR:MASTER_PORT (c10d's over TCP), which rank 0 hosts unless the launcher
/// does, and waits until all processes of the run have. What earlier starts of the run have left in a
/// launcher's store is not seen. Throws Error(kTimeout) when not all arrive in time, Error(kUsage) when the
/// address cannot be used.
RunStore join_run_store(const LaunchEnvironment& environment, std::chrono::milliseconds timeout);

/// Every rank's text, in rank order. Collective over the run; `purpose` is a new one each time.
std::vector<std::string> exchange_texts(RunStore& store, const LaunchEnvironment& environment,
                                        const std::string& purpose, const std::string& text);

/// Before the run ends for want of a communicator: rank 0, which may host the store, stays until the others
/// have read all that they need.
void leave_store(RunStore& store, const LaunchEnvironment& environment);

/// Whether this text of an exception of c10d means that a time-out has passed.
bool says_timeout(const std::string& text);

/// c10d puts a stack trace behind the first line. An address such as 249.85.0.0 is left out: gloo prints that
/// of a peer whose address it never set, and finds a part of a pointer there.
std::string first_line(const std::string& text);

}  // namespace fsdp::comm
