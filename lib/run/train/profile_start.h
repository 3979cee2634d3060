#pragma once

// fsdp-train --profile-start: the phases of the time from the start of the program to the end of its first
// step.

#include <memory>
#include <string>
#include <vector>

#include "base/util/start_clock.h"
#include "comm/api/communicator.h"
#include "setup/config/config.h"

namespace fsdp::train {

/// Builds the run as Trainer does and takes its first step, in an output folder of its own, which it removes.
/// The run's folder and the checkpoints in it are neither read nor changed; a checkpoint that
/// checkpoint.resume names is read. Returns this rank's record, whose last phase is the step. Collective.
/// Throws as Trainer does.
std::vector<util::StartPhase> profile_start(config::Config config,
                                            std::shared_ptr<comm::Communicator> communicator);

/// Returns the phases as a table with a total.
std::string start_text(const std::vector<util::StartPhase>& phases);
/// Returns {"phases": [{"name": ..., "seconds": ...}, ...], "seconds_to_first_step": ..., "seconds": ...}
std::string start_json(const std::vector<util::StartPhase>& phases);

}  // namespace fsdp::train
