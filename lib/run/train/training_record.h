#pragma once

// "training" in a checkpoint's manifest: what a run needs to resume, apart from its tensors.

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "data/loading/loader.h"
#include "run/train/evaluate.h"
#include "run/train/update_guard.h"
#include "setup/config/config.h"
#include "shard/engine/tensor_slice.h"
#include "state/groups/grad_scaler.h"
#include "state/optim/optimizer.h"
#include "state/outer/outer_optimizer.h"

namespace fsdp::shard {
class Engine;
}

namespace fsdp::train {

/// The state of a run that is saved and restored; all must outlive the object.
struct TrainingState {
  shard::Engine& engine;
  optim::Optimizer& optimizer;
  optim::GradScaler* scaler = nullptr;       ///< null: the loss is not scaled
  UpdateGuard* guard = nullptr;              ///< null: no step is skipped for its loss or norm
  ValidationHistory* validations = nullptr;  ///< null: the run has none
  nlohmann::json data = nullptr;             ///< data_record(), on rank 0; null: neither kept nor compared
  nlohmann::json sampling = nullptr;         ///< sampling_record() (sample_position.h); null: as above
  data::TrainLoader* loader = nullptr;       ///< null: where reading goes on is not kept
  optim::OuterOptimizer* outer = nullptr;    ///< null: the run has no local steps

  /// The slices of a save: weights, states and errors of quantized gradients, or those of local steps.
  /// Collective with `outer`.
  std::vector<shard::TensorSlice> slices_to_save() const;
  /// All tensors of this rank, under names that do not depend on its place.
  std::vector<shard::TensorSlice> slices_in_memory() const;
};

/// How far a run has come.
struct RunPosition {
  int64_t step = 0;          ///< optimizer steps done
  int64_t samples_seen = 0;  ///< the run's global sample position
  int64_t tokens_seen = 0;
  int64_t samples_per_step = 0;    ///< over all ranks, when it was saved; 0: unknown
  double loss = 0, grad_norm = 0;  ///< loss and norm of the last step; NaN if it had no targets
  /// Sum and number of the finite losses since the last multiple of logging.interval_steps.
  double loss_sum = 0;
  int64_t losses = 0;
  int64_t steps_without_targets = 0;
  double training_seconds = 0;  ///< spent in Trainer::run(), over all starts of the run
};

nlohmann::json training_record(const config::Config& config, const TrainingState& state,
                               const RunPosition& position);

/// Restores step counts, loss scale, guard and past validations, and returns the position. The loader resumes
/// from the record if `same_data`. Throws Error(kCheckpoint) for a record that training_record() did not
/// make; `where` begins the message.
RunPosition restore_training_record(const nlohmann::json& record, int64_t step, const TrainingState& state,
                                    const std::string& where, bool same_data = true);

/// Returns the identity of a run's data: data::Samples::identity() of training and, if there is any, of
/// validation.
nlohmann::json data_record(const data::TrainLoader& training, const data::ValidationLoader* validation);

/// Throws Error(kData) when the files that a run resumes with are not the `recorded` ones; only warns when
/// they may differ (data.allow_changed). `where` names the checkpoint. Keys that the record lacks are not
/// compared.
void require_same_data(const nlohmann::json& recorded, const nlohmann::json& found, bool may_differ,
                       const std::string& where);

}  // namespace fsdp::train
