#pragma once

// The second model of a run, which is not trained: the reference or the teacher of training.objective.

#include <optional>
#include <string>

#include "setup/config/config.h"

namespace fsdp::config {

struct SecondModel {
  Config config;     ///< as that of the run, with the model and its weights, and without adapters
  std::string role;  ///< "reference" or "teacher"
};

/// Returns the second model; nothing if the objective needs none, or if files have what it computes. A
/// teacher has the architecture and sizes that are described beside its weights. Throws Error(kUsage) for a
/// teacher of another vocabulary, and Error(kCheckpoint) for weights whose description cannot be read.
std::optional<SecondModel> second_model(const Config& config);

}  // namespace fsdp::config
