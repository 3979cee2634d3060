#pragma once

// The log-probabilities of a reference, computed once and kept beside the data
// (data/tokens/stored_reference.h).

#include <filesystem>
#include <memory>
#include <vector>

#include "comm/api/communicator.h"
#include "setup/config/config.h"

namespace fsdp::train {

/// Computes those of data.train and data.validation by preference.reference_model or else model.init_from,
/// without adapters, and writes a file for each set. Returns the files. Collective. Throws Error(kUsage) for
/// an objective without a reference, and the errors of opening data and weights.
std::vector<std::filesystem::path> write_reference_log_probs(
    const config::Config& config, std::shared_ptr<comm::Communicator> communicator);

}  // namespace fsdp::train
