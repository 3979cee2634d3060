#pragma once

#include <cstdint>

#include "config/config.h"
#include "data/loader.h"
#include "train/training_record.h"

namespace fsdp::train {

/// Micro-steps of a step (from 1): with training.batch_warmup_steps = w they rise evenly from 1 in step 1 to
/// A = gradient_accumulation_steps in step w + 1. A function of the step alone, so that a run that resumes
/// does the same steps.
inline int64_t micro_steps_of(const config::TrainingOptions& options, int64_t step) {
  const int64_t most = options.gradient_accumulation_steps, warmup = options.batch_warmup_steps;
  if (step > warmup) return most;
  // Wider than the product of two such numbers.
  const auto risen = static_cast<__int128>(most - 1) * (step - 1) / warmup;
  return 1 + static_cast<int64_t>(risen);
}

/// How many steps a run of training.epochs passes over the data has in all, of which position.step are done:
/// whole steps only, at least one. What is left depends on the samples that were seen, not on the steps that
/// saw them, so a run that goes on with another global batch ends after the same samples.
int64_t steps_of_epochs(const config::TrainingOptions& options, const data::TrainLoader& loader,
                        const RunPosition& position);

}  // namespace fsdp::train
