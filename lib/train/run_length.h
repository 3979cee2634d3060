#pragma once

#include <cstdint>

#include "config/config.h"
#include "data/loader.h"
#include "train/training_record.h"

namespace fsdp::train {

/// How many steps a run of training.epochs passes over the data has in all, of which position.step are done:
/// whole steps only, at least one. What is left depends on the samples that were seen, not on the steps that
/// saw them, so a run that goes on with another global batch ends after the same samples.
int64_t steps_of_epochs(const config::TrainingOptions& options, const data::TrainLoader& loader,
                        const RunPosition& position);

}  // namespace fsdp::train
