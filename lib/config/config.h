#pragma once

// The whole configuration of a training run: every component's options in one struct, plus those of the run
// itself. config/*_keys.cpp bind each field to its TOML key.

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/options.h"
#include "comm/options.h"
#include "data/options.h"
#include "nn/options.h"
#include "optim/options.h"
#include "shard/options.h"

namespace fsdp::config {

struct RunOptions {
  std::string name = "run";
  std::string output_dir = "checkpoints/run";  ///< checkpoints, metrics.jsonl, resolved config
  int64_t seed = 1234;
  std::vector<std::string> plugins;  ///< shared libraries (plugin/plugin.h)
};

struct TrainingOptions {
  int64_t steps = 200;
  double epochs = 0;  ///< above 0: as many steps as these passes over the training data take
  /// Samples a step of all ranks together; 0: as gradient_accumulation_steps says.
  int64_t global_batch_size = 0;
  /// 0: as many as global_batch_size takes in this world (resolve_batch() in global_batch.h).
  int64_t gradient_accumulation_steps = 1;
  /// Over so many steps the micro-batches a step rise from 1 to that number.
  int64_t batch_warmup_steps = 0;
  double max_grad_norm = 1.0;          ///< 0: no clipping (the norm is still reported)
  std::string loss = "cross_entropy";  ///< of losses() (nn/architectures.h)
  double label_smoothing = 0.0;        ///< kernels::LossTerms
  double z_loss = 0.0;
  double norm_type = 2.0;                            ///< p of the p-norm; inf: the largest magnitude
  std::string device = "auto";                       ///< train/device.h
  std::string float32_matmul_precision = "highest";  ///< train/device.h
  bool fused_kernels = true;
  std::string matmul = "auto";
  std::string float8 = "none";              ///< products of linear layers in 8 bits: nn/layers.h
  std::vector<std::string> float8_exclude;  ///< patterns of the weights of those that stay as they are
  bool cuda_graphs = false;                 ///< nn/stage_graphs.h
  /// Gradients of micro-batches add up unsharded and are reduced after the last one only (PyTorch's no_sync).
  bool no_sync = false;
  /// No update, and no end of the run, where the loss or the gradient norm is not finite.
  bool skip_nonfinite = false;
  /// No update where one of the two lies more than so many standard deviations above its mean over the last
  /// skip_window updates; 0: not looked at.
  double skip_zscore = 0.0;
  int64_t skip_window = 128;
  int64_t max_skipped_steps = 10;  ///< skipped in a row; one more ends the run
};

struct EvaluationOptions {
  int64_t interval_steps = 0;  ///< validate every so many steps; 0: only after the last
  int64_t max_samples = 0;     ///< at most so many samples of the validation files; 0: all
  int64_t patience = 0;  ///< the run ends after so many validations in a row without a better loss; 0: never
  double min_delta = 0.0;  ///< a better loss is lower by more than this
};

struct LoggingOptions {
  int64_t interval_steps = 1;
  bool trace_communication = false;
  /// Products of matrices in param_dtype that a rank could do at best, in TFLOP/s: what MFU is a share of; 0:
  /// of the GPU's data sheet, or measured.
  double peak_tflops = 0.0;
  bool csv = false;          ///< metrics.csv beside metrics.jsonl
  bool tensorboard = false;  ///< event files of TensorBoard
  std::vector<int64_t> profile_steps;
  bool nvtx = false;             ///< ranges of operations and units for NVIDIA's profilers
  bool memory_snapshot = false;  ///< util::record_cuda_memory_history()
  int64_t sample_every = 0;      ///< log a text of the model's every so many steps; 0: never
  std::string sample_prompt;     ///< what it goes on from; empty: a new text
  int64_t sample_tokens = 64;
};

struct Config {
  RunOptions run;
  nn::ModelOptions model;
  data::DataOptions data;
  TrainingOptions training;
  EvaluationOptions evaluation;
  optim::OptimizerOptions optimizer;
  optim::ScheduleOptions lr_scheduler;
  shard::ShardOptions fsdp;
  shard::MixedPrecisionOptions mixed_precision;
  optim::GradScalerOptions loss_scaler;
  nn::CheckpointingOptions activation_checkpointing;
  comm::MeshOptions mesh;
  comm::CommOptions comm;
  checkpoint::CheckpointOptions checkpoint;
  LoggingOptions logging;
  /// Of the keys that plug-ins have added; the options above that take such values have copies.
  util::PluginValues plugin_values;
};

/// [fsdp] and [mixed_precision] together, as the engine takes them.
inline shard::ShardOptions shard_options(const Config& config) {
  shard::ShardOptions options = config.fsdp;
  options.mixed_precision = config.mixed_precision;
  return options;
}

}  // namespace fsdp::config
