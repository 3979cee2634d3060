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

/// Compares what the results depend on among the ranks: every key of the config, the toolkit's version, and
/// the first bytes and sizes of the token files. Throws an AgreedError(kUsage) that names the first rank that
/// differs from rank 0, and the difference. Must be the first collective of a run: in others, ranks that
/// differ would wait for each other forever.
void require_same_run(const config::Config& config, comm::Communicator& communicator);

/// A few lines: model, ranks, compute, memory, batch and data of the run that begins at `position`.
std::string banner(const config::Config& config, const ShardedModel& parts, const data::TrainLoader& loader,
                   const PeakRate& peak, const RunPosition& position = {});

/// environment.json: where and with which programs the run was last started, as texts and numbers of this
/// process for people and reports; the toolkit itself never reads them back to decide anything.
nlohmann::ordered_json run_environment(const comm::Communicator& communicator, const PeakRate& peak);

}  // namespace fsdp::train
