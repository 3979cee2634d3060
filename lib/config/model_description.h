#pragma once

// The models of plug-ins beside their weights. config.json of Hugging Face has no words for them, so what it
// has in their place is a part of a configuration, under "fsdp_config": [model], and the keys of the plug-in that
// the weights determine (nn::Architecture::keys). "fsdp_plugins" names the shared libraries; none is loaded
// because a file says so.

#include <nlohmann/json.hpp>

#include "checkpoint/described_model.h"
#include "config/config.h"

namespace fsdp::config {

/// What is written beside the weights of config.model: Hugging Face's keys, or, for the model of a plug-in,
/// the above.
nlohmann::json model_description(const Config& config);

/// The other way round. Throws Error(kCheckpoint) for the model of a plug-in that is not loaded.
nn::ModelOptions model_of(const checkpoint::DescribedModel& model);

}  // namespace fsdp::config
