#pragma once

// What a run trains and by what, built from its config: the same for training, evaluating and explaining a
// step.

#include <memory>
#include <optional>

#include "comm/mesh.h"
#include "comm/trace.h"
#include "config/config.h"
#include "data/loader.h"
#include "nn/layers.h"
#include "nn/stage.h"
#include "nn/stage_graphs.h"
#include "optim/grad_scaler.h"
#include "optim/optimizer.h"
#include "shard/engine.h"
#include "train/train_step.h"

namespace fsdp::train {

struct ShardedModel {
  std::shared_ptr<nn::Stage> model;
  std::shared_ptr<shard::Engine> engine;  ///< shards the model
  nn::Float8Layers float8;                ///< of training.float8; none where it is "none"
};

struct RunParts : ShardedModel {
  std::unique_ptr<optim::WholeMatrices> matrices;  ///< of the optimizer
  std::unique_ptr<optim::Optimizer> optimizer;
  std::optional<optim::GradScaler> scaler;
  std::optional<UpdateGuard> guard;
  std::shared_ptr<const nn::GraphCounts> graphs;  ///< of training.cuda_graphs; null: none
};

/// This rank's place among those that share the global batch.
data::Placement placement(const config::Config& config, const comm::Communicator& communicator);

/// Throws Error(kData) for what is wrong with the token files, and Error(kUsage) for a tokenizer that has
/// more tokens than the model.
data::TrainLoader open_training_data(const config::Config& config, const comm::Communicator& communicator);

/// config.data.validation, which must name files. Throws as above.
data::ValidationLoader open_validation_data(const config::Config& config,
                                            const comm::Communicator& communicator);

/// The model with its first weights, sharded over the mesh, recomputed where the config says so. It is built
/// on the meta device and gets its weights shard by shard, so that no rank ever holds it whole. `trace`, if
/// any, hears of the unsharded buffers. `weights`: in place of those that the config asks for. Collective,
/// with the same config on all ranks; throws comm::AgreedError.
ShardedModel build_sharded_model(const config::Config& config, const comm::Mesh& mesh,
                                 std::shared_ptr<comm::Trace> trace,
                                 shard::ParameterSource* weights = nullptr);

/// That and what trains it; with training.cuda_graphs the calling thread, which must be the one that trains,
/// launches on a stream of its own from then on. Collective and throws alike.
RunParts build_run_parts(const config::Config& config, const comm::Mesh& mesh,
                         std::shared_ptr<comm::Trace> trace, shard::ParameterSource* weights = nullptr);

/// The parts and `batches` must outlive what is returned. `stop_requested` as in TrainStep::Parts.
TrainStep make_train_step(const config::Config& config, RunParts& parts, const data::BatchSource& batches,
                          std::function<bool()> stop_requested = nullptr);

}  // namespace fsdp::train
