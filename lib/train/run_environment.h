#pragma once

#include <nlohmann/json.hpp>

#include "comm/communicator.h"
#include "train/peak_rate.h"

namespace fsdp::train {

/// environment.json of a run: where and by what its last start was done, for people and reports. Texts and
/// numbers only; nothing reads it back to decide anything. Of this process.
nlohmann::ordered_json run_environment(const comm::Communicator& communicator, const PeakRate& peak);

}  // namespace fsdp::train
