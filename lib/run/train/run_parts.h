#pragma once

// The parts of a run, built from its config: data, model, optimizer, step. The same for training, evaluating
// and explaining a step.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>

#include "comm/api/mesh.h"
#include "comm/api/trace.h"
#include "data/loading/loader.h"
#include "data/loading/prefetch.h"
#include "model/nn/layers.h"
#include "model/nn/lora.h"
#include "model/nn/stage.h"
#include "model/nn/stage_graphs.h"
#include "run/train/train_step.h"
#include "run/train/training_record.h"
#include "setup/config/config.h"
#include "shard/engine/engine.h"
#include "state/groups/grad_scaler.h"
#include "state/optim/optimizer.h"
#include "tools/plan/memory.h"

namespace fsdp::train {

struct ShardedModel {
  std::shared_ptr<nn::Stage> model;
  std::shared_ptr<const parallel::CutSequence> cut;  ///< of the rows that it gets; null: they are whole
  std::shared_ptr<shard::Engine> engine;             ///< shards the model
  nn::Float8Layers float8;                           ///< empty without training.float8
  nn::LoraLayers adapted;                            ///< empty without lora.rank
  std::vector<nn::ParameterPart> layers;             ///< of the model, if the mesh's axis model cuts them
  nn::CheckpointingOptions checkpointing;            ///< with what was chosen for a budget
};

/// What need not be computed again; each may be null.
struct KnownParts {
  shard::ParameterSource* weights = nullptr;  ///< in place of those of the config
  /// Of the run's groups with memory in common, by the micro-batches of a step; gets those that it lacks.
  std::map<int64_t, plan::BufferShapes>* buffers = nullptr;
};

struct RunParts : ShardedModel {
  std::unique_ptr<optim::WholeMatrices> matrices;  ///< for the optimizer
  std::unique_ptr<optim::Optimizer> optimizer;
  std::optional<optim::GradScaler> scaler;
  std::optional<UpdateGuard> guard;
  std::shared_ptr<const nn::GraphCounts> graphs;  ///< null without training.cuda_graphs
};

/// Throws Error(kData) for damaged or unfit token files, and Error(kUsage) for a tokenizer with more tokens
/// than the model.
data::TrainLoader open_training_data(const config::Config& config, const comm::Communicator& communicator);

/// How batches come to the ranks of the mesh: on their devices, with mesh.context as the rank's parts of the rows,
/// and with fsdp.front = "spmd" marked as parts of a global batch, so that the model does not cut them.
data::PrefetchOptions prefetch_options(const config::Config& config, const comm::Mesh& mesh);

/// This rank's part of each sequence; null if sequences are whole.
std::shared_ptr<const parallel::CutSequence> cut_sequence(const config::Config& config,
                                                          const comm::Mesh& mesh);

/// With fsdp.front = "spmd" marks an input of the model that is whole on every rank; else null.
std::function<void(const at::Tensor& input)> marks_whole_inputs(const config::Config& config,
                                                                const comm::Mesh& mesh);

/// Of config.data.validation, which must name files. Throws Error(kData).
data::ValidationLoader open_validation_data(const config::Config& config,
                                            const comm::Communicator& communicator);

/// Micro-steps of a step (from 1): with training.batch_warmup_steps = w they rise evenly from 1 in step 1 to
/// A = gradient_accumulation_steps in step w + 1. They depend on the step alone, so that a run that resumes
/// does the same steps.
int64_t micro_steps_of(const config::TrainingOptions& options, int64_t step);

/// Steps of a run of training.epochs passes over the data, those already done included: whole steps only, at
/// least one. What is left depends on the samples seen, not on the steps that saw them, so a run that goes on
/// with another global batch ends after the same samples.
int64_t steps_of_epochs(const config::TrainingOptions& options, const data::TrainLoader& loader,
                        const RunPosition& position);

/// The model with its first weights, sharded over the mesh, recomputed where the config says so. It is built
/// on the meta device and gets its weights shard by shard, so that no rank ever holds it whole. `trace`,
/// where not null, records the unsharded buffers. Collective, with the same config on all ranks; throws
/// comm::AgreedError.
ShardedModel build_sharded_model(const config::Config& config, const comm::Mesh& mesh,
                                 std::shared_ptr<comm::Trace> trace, const KnownParts& known = {});

/// The sharded model and what trains it. With training.cuda_graphs the calling thread, which must be the one
/// that trains, launches on a stream of its own from then on. Collective; throws comm::AgreedError.
RunParts build_run_parts(const config::Config& config, const comm::Mesh& mesh,
                         std::shared_ptr<comm::Trace> trace, const KnownParts& known = {});

/// Chooses the step: a ReproducibleStep with training.reproducible = "world_size", to which alone `leave_requested` is
/// passed. The parts and `batches`, which must be on the device, must outlive the step.
std::unique_ptr<TrainStep> make_train_step(const config::Config& config, RunParts& parts,
                                           const data::BatchSource& batches,
                                           std::function<bool()> stop_requested = nullptr,
                                           std::function<bool()> leave_requested = nullptr);

}  // namespace fsdp::train
