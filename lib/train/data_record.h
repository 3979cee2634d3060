#pragma once

// Which data a run reads, as its checkpoints keep it.

#include <nlohmann/json.hpp>
#include <string>

#include "data/loader.h"

namespace fsdp::train {

/// data::Samples::identity() of training and, where there is any, of validation.
nlohmann::json data_record(const data::TrainLoader& training, const data::ValidationLoader* validation);

/// kData when the files that a run resumes with are not those of `recorded`; a warning in its place when they
/// may differ (data.allow_changed). `where` says whose record it is. What a record does not have is not
/// compared.
void require_same_data(const nlohmann::json& recorded, const nlohmann::json& found, bool may_differ,
                       const std::string& where);

}  // namespace fsdp::train
