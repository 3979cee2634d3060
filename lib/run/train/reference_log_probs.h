#pragma once

// The log-probabilities of a reference, or the likeliest tokens of a teacher, computed once and kept beside
// the data (data/tokens/stored_reference.h, stored_teacher.h).

#include <filesystem>
#include <memory>
#include <vector>

#include "comm/api/communicator.h"
#include "setup/config/config.h"

namespace fsdp::train {

/// Writes a file for each set of data.train, computed by distillation.teacher_model if the objective has a
/// teacher. Otherwise also writes a file for data.validation, and computes by preference.reference_model or
/// else model.init_from, without adapters. Returns the files. Collective. Throws Error(kUsage) for an
/// objective with neither, and the errors of opening data and weights.
std::vector<std::filesystem::path> write_reference_log_probs(
    const config::Config& config, std::shared_ptr<comm::Communicator> communicator);

}  // namespace fsdp::train
