#pragma once

// The start of a run: checks that all ranks run the same, and describes the run in the log and in its folder.

#include <nlohmann/json.hpp>
#include <string>

#include "comm/api/communicator.h"
#include "data/loading/loader.h"
#include "run/train/device.h"
#include "run/train/run_parts.h"
#include "setup/config/config.h"

namespace fsdp::train {

/// Compares among the ranks all on which results depend: every key of the config, the toolkit's version, and
/// the first bytes and sizes of the token files. Throws an AgreedError(kUsage) with the first rank that
/// differs from rank 0, and the difference. Requires: this is the first collective of a run, because ranks
/// that differ would wait for each other forever in others.
void require_same_run(const config::Config& config, comm::Communicator& communicator);

/// Describes in a few lines the model, ranks, compute, memory, batch and data of the run that begins at
/// `position`.
std::string banner(const config::Config& config, const ShardedModel& parts, const data::TrainLoader& loader,
                   const PeakRate& peak, const RunPosition& position = {});

/// Returns the content of environment.json: the machine and the programs with which the run was last started,
/// as texts and numbers of this process, for people and reports. No decision of the toolkit depends on them.
nlohmann::ordered_json run_environment(const comm::Communicator& communicator, const PeakRate& peak);

}  // namespace fsdp::train
