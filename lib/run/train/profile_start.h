#pragma once

// fsdp-train --profile-start: where the time from the start of the program to the end of its first step goes.

#include <memory>
#include <string>
#include <vector>

#include "base/util/start_clock.h"
#include "comm/api/communicator.h"
#include "setup/config/config.h"

namespace fsdp::train {

/// Builds the run as Trainer does and takes its first step, in an output folder of its own, which it removes:
/// neither the run's folder nor a checkpoint in it is touched or read. (One that checkpoint.resume names is.)
/// Returns this rank's record, in which the last phase is the step. Collective; throws as Trainer does.
std::vector<util::StartPhase> profile_start(config::Config config,
                                            std::shared_ptr<comm::Communicator> communicator);

/// As a table with a total.
std::string start_text(const std::vector<util::StartPhase>& phases);
/// {"phases": [{"name": ..., "seconds": ...}, ...], "seconds_to_first_step": ..., "seconds": ...}
std::string start_json(const std::vector<util::StartPhase>& phases);

}  // namespace fsdp::train
