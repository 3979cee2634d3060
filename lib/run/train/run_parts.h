#pragma once

// The parts of a run, built from its config: data, model, optimizer and step. Training, evaluation and the
// explanation of a step use the same parts.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>

#include "base/util/progress_bar.h"
#include "comm/api/mesh.h"
#include "comm/api/trace.h"
#include "data/loading/loader.h"
#include "data/loading/prefetch.h"
#include "model/nn/layers.h"
#include "model/nn/lora.h"
#include "model/nn/stage.h"
#include "model/nn/stage_graphs.h"
#include "run/train/replica_step.h"
#include "run/train/train_step.h"
#include "run/train/training_record.h"
#include "setup/config/config.h"
#include "state/groups/grad_scaler.h"
#include "state/optim/optimizer.h"
#include "state/outer/outer_optimizer.h"
#include "tools/plan/memory.h"

namespace fsdp::shard {
class Engine;
class ParameterSource;
}  // namespace fsdp::shard

namespace fsdp::train {

struct ShardedModel {
  std::shared_ptr<nn::Stage> model;
  std::shared_ptr<const parallel::CutSequence> cut;  ///< the cut of the model's rows; null: rows are whole
  std::shared_ptr<shard::Engine> engine;             ///< shards the model
  nn::Float8Layers float8;                           ///< empty without training.float8
  nn::LoraLayers adapted;                            ///< empty without lora.rank
  std::vector<nn::ParameterPart> layers;             ///< parts of layers, if the mesh's axis model cuts them
  nn::CheckpointingOptions checkpointing;            ///< includes the choice for a budget of memory
};

/// Results that need not be computed again; each may be null.
struct KnownParts {
  shard::ParameterSource* weights = nullptr;  ///< weights in place of those of the config
  /// Shapes of buffers, keyed by the number of micro-batches of a step. Missing shapes are added.
  std::map<int64_t, plan::BufferShapes>* buffers = nullptr;
  util::ByteProgress progress = {};  ///< progress of reading or drawing the first weights
  bool frozen = false;               ///< no parameter is trained, so buffers of backward are not needed
};

struct RunParts : ShardedModel {
  std::unique_ptr<optim::WholeMatrices> matrices;  ///< the whole matrices that the optimizer needs
  std::unique_ptr<optim::Optimizer> optimizer;
  std::optional<optim::GradScaler> scaler;
  std::optional<UpdateGuard> guard;
  std::shared_ptr<Objective> objective;           ///< loss of a micro-batch
  std::shared_ptr<const nn::GraphCounts> graphs;  ///< null without training.cuda_graphs
  std::unique_ptr<optim::OuterOptimizer> outer;   ///< null without training.local_steps
  ReplicaStanding standing;                       ///< of a replica with local steps
};

/// Opens data.train. Throws Error(kData) for damaged or unfit token files, and Error(kUsage) for a tokenizer
/// with more tokens than the model.
data::TrainLoader open_training_data(const config::Config& config, const comm::Communicator& communicator);

/// Returns the options by which batches reach the ranks of the mesh: on their devices; with mesh.context, as
/// the rank's parts of the rows; with fsdp.front = "spmd", marked as parts of a global batch, so that the
/// model does not cut them.
data::PrefetchOptions prefetch_options(const config::Config& config, const comm::Mesh& mesh);

/// Returns this rank's part of each sequence; null if sequences are whole.
std::shared_ptr<const parallel::CutSequence> cut_sequence(const config::Config& config,
                                                          const comm::Mesh& mesh);

/// Returns a function that marks an input of the model that is whole on every rank; null unless fsdp.front =
/// "spmd".
std::function<void(const at::Tensor& input)> marks_whole_inputs(const config::Config& config,
                                                                const comm::Mesh& mesh);

/// Opens config.data.validation, which must name files, without stored tokens of a teacher. Throws
/// Error(kData).
data::ValidationLoader open_validation_data(const config::Config& config,
                                            const comm::Communicator& communicator);

/// Returns the number of micro-steps of a step (from 1). With training.batch_warmup_steps = w it rises evenly
/// from 1 in step 1 to A = gradient_accumulation_steps in step w + 1. It depends on the step alone, so that a
/// resumed run does the same steps.
int64_t micro_steps_of(const config::TrainingOptions& options, int64_t step);

/// Returns the number of steps of a run of training.epochs passes over the data, including those already
/// done: whole steps only, at least one. The number of steps left depends on the samples seen, not on the
/// steps that saw them, so a run that goes on with another global batch ends after the same samples.
int64_t steps_of_epochs(const config::TrainingOptions& options, const data::TrainLoader& loader,
                        const RunPosition& position);

/// Builds the model with its first weights, sharded over the mesh, and recomputed as the config says. The
/// model is built on the meta device and gets its weights shard by shard, so that no rank ever holds it
/// whole. `trace`, if not null, records the unsharded buffers. Collective, with the same config on all ranks.
/// Throws comm::AgreedError.
ShardedModel build_sharded_model(const config::Config& config, const comm::Mesh& mesh,
                                 std::shared_ptr<comm::Trace> trace, const KnownParts& known = {});

/// Builds the sharded model and the parts that train it. With training.local_steps, these have the ranks of
/// one replica: the ranks with the same place on the mesh's axis dcn. With training.cuda_graphs the calling
/// thread, which must be the one that trains, launches on a stream of its own from then on. Collective.
/// Throws comm::AgreedError.
RunParts build_run_parts(const config::Config& config, const comm::Mesh& mesh,
                         std::shared_ptr<comm::Trace> trace, const KnownParts& known = {});

/// Chooses the step: a ReplicaStep with training.local_steps, a ReproducibleStep with training.reproducible =
/// "world_size". Only these two use `leave_requested`. The parts and `batches`, which must be on the device,
/// must outlive the step.
std::unique_ptr<TrainStep> make_train_step(const config::Config& config, RunParts& parts,
                                           const data::BatchSource& batches,
                                           std::function<bool()> stop_requested = nullptr,
                                           std::function<bool()> leave_requested = nullptr);

}  // namespace fsdp::train
