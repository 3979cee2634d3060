#pragma once

// Whether all ranks are about to run the same thing.

#include "comm/communicator.h"
#include "config/config.h"

namespace fsdp::train {

/// Compares what the ranks' results depend on: every key of the config, the toolkit's version, and the first
/// bytes and sizes of the token files. Throws an AgreedError(kUsage) that names the first rank that differs
/// from rank 0, in what and how. Collective, and the first thing to be so: ranks that differ would wait for
/// each other in other collectives for ever.
void require_same_run(const config::Config& config, comm::Communicator& communicator);

}  // namespace fsdp::train
