#pragma once

#include <nlohmann/json.hpp>

#include "nn/options.h"

namespace fsdp::checkpoint {

/// The model's options as Hugging Face's config.json has them, so that exported weights load there.
nlohmann::json hugging_face_config(const nn::ModelOptions& options);

}  // namespace fsdp::checkpoint
