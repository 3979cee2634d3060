#pragma once

// What a checkpoint keeps of a run beside its tensors: "training" in the manifest.

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "config/config.h"
#include "optim/grad_scaler.h"
#include "optim/optimizer.h"
#include "shard/engine.h"
#include "train/update_guard.h"
#include "train/validation_history.h"

namespace fsdp::train {

/// What is saved of a run and restored into it; all must outlive whoever is given it.
struct TrainingState {
  const shard::Engine& engine;
  optim::Optimizer& optimizer;
  optim::GradScaler* scaler = nullptr;       ///< none: the loss is not scaled
  UpdateGuard* guard = nullptr;              ///< none: no step is skipped for its loss or norm
  ValidationHistory* validations = nullptr;  ///< none: there are none
  nlohmann::json data = nullptr;             ///< data_record(), on rank 0; null: not kept and not compared
};

/// How far a run has come.
struct RunPosition {
  int64_t step = 0;          ///< optimizer steps done
  int64_t samples_seen = 0;  ///< the run's global sample position
  int64_t tokens_seen = 0;
  int64_t samples_per_step = 0;  ///< of all ranks, when it was saved; 0: not known
};

nlohmann::json training_record(const config::Config& config, const TrainingState& state,
                               const RunPosition& position);

/// Puts step counts, loss scale, what the guard remembers and past validations back and returns the position.
/// kCheckpoint when the record is not one of training_record(); `where` opens the message.
RunPosition restore_training_record(const nlohmann::json& record, int64_t step, const TrainingState& state,
                                    const std::string& where);

}  // namespace fsdp::train
