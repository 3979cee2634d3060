#pragma once

// The whole configuration of a training run: the options of every component and of the run itself.
// config/*_keys.cpp bind each field to its TOML key.

#include <cstdint>
#include <string>
#include <vector>

#include "base/util/enum_names.h"
#include "comm/options/options.h"
#include "data/options/options.h"
#include "model/families/objectives.h"
#include "model/families/options.h"
#include "shard/units/options.h"
#include "state/groups/options.h"
#include "state/groups/parameter_groups.h"
#include "state/manifest/options.h"

namespace fsdp::config {

struct RunOptions {
  std::string name = "run";
  std::string output_dir = "checkpoints/run";  ///< checkpoints, metrics.jsonl, resolved config
  int64_t seed = 1234;
  std::vector<std::string> plugins;  ///< shared libraries (setup/plugin/plugin.h)
};

/// Device of a rank; kAuto: a GPU if the program and the machine have one.
enum class DeviceChoice { kAuto, kCpu, kCuda };
constexpr auto enum_names(DeviceChoice) {
  return std::to_array<util::EnumName<DeviceChoice>>(
      {{DeviceChoice::kAuto, "auto"}, {DeviceChoice::kCpu, "cpu"}, {DeviceChoice::kCuda, "cuda"}});
}

/// Precision of fp32 matrix products (run/train/device.h).
enum class Float32Precision { kHighest, kHigh };
constexpr auto enum_names(Float32Precision) {
  return std::to_array<util::EnumName<Float32Precision>>(
      {{Float32Precision::kHighest, "highest"}, {Float32Precision::kHigh, "high"}});
}

/// Scope in which runs of the same config are equal bit for bit.
enum class Reproducible {
  kRun,        ///< everything, on as many ranks, with as many threads
  kWorldSize,  ///< weights, optimizer state and metrics, on any number of ranks: model/kernels/sample_sums.h
};
constexpr auto enum_names(Reproducible) {
  return std::to_array<util::EnumName<Reproducible>>(
      {{Reproducible::kRun, "run"}, {Reproducible::kWorldSize, "world_size"}});
}

/// Scaling of the tensors of 8-bit products (model/kernels/float8.h).
enum class Float8Recipe { kNone, kTensorwise, kRowwise };
constexpr auto enum_names(Float8Recipe) {
  return std::to_array<util::EnumName<Float8Recipe>>({{Float8Recipe::kNone, "none"},
                                                      {Float8Recipe::kTensorwise, "tensorwise"},
                                                      {Float8Recipe::kRowwise, "rowwise"}});
}

struct TrainingOptions {
  int64_t steps = 200;
  double epochs = 0;              ///< above 0: overrides steps with this many passes over the training data
  double stop_after_hours = 0;    ///< hours of training, over all starts of the run; 0: no limit
  int64_t global_batch_size = 0;  ///< samples per step over all ranks; 0: by gradient_accumulation_steps
  /// Micro-batches per step; 0: derived from global_batch_size and the world size (resolve_batch() in
  /// global_batch.h).
  int64_t gradient_accumulation_steps = 1;
  /// Steps that each replica of mesh.dcn takes alone between two exchanges (state/outer/outer_optimizer.h);
  /// 0: gradients are averaged over replicas in each step.
  int64_t local_steps = 0;
  int64_t batch_warmup_steps = 0;  ///< steps over which micro-batches per step grow from 1 to that number
  double max_grad_norm = 1.0;      ///< 0: no clipping (the norm is still reported)
  double clip_grad_value = 0.0;    ///< limit for each element of the gradient; 0: no clipping
  std::string objective = nn::kLanguageModel;  ///< name in nn::objectives() (model/families/objectives.h)
  std::string loss = "cross_entropy";          ///< name in losses() (model/families/architectures.h)
  double label_smoothing = 0.0;                ///< kernels::LossTerms
  double z_loss = 0.0;
  double norm_type = 2.0;                                  ///< p of the p-norm; inf: the largest magnitude
  util::Named<DeviceChoice> device = DeviceChoice::kAuto;  ///< run/train/device.h
  util::Named<Float32Precision> float32_matmul_precision =
      Float32Precision::kHighest;  ///< run/train/device.h
  bool fused_kernels = true;
  int64_t logits_mib = 0;  ///< of the head at a time on a GPU; 0: plan::choose_logits_mib()
  util::Named<nn::MatmulChoice> matmul = nn::MatmulChoice::kAuto;
  bool product_trials = false;                             ///< model/kernels/product_choices.h
  util::Named<Float8Recipe> float8 = Float8Recipe::kNone;  ///< nn/float8.h
  std::vector<std::string> float8_exclude;  ///< patterns of weights whose layers do not use float8
  bool cuda_graphs = false;                 ///< model/nn/stage_graphs.h
  bool deterministic = false;  ///< only kernels with the same results every time: run/train/device.h
  util::Named<Reproducible> reproducible = Reproducible::kRun;
  /// Accumulate gradients of micro-batches unsharded and reduce after the last one (PyTorch's no_sync).
  bool no_sync = false;
  /// Skip the update, instead of ending the run, when the loss or the gradient norm is not finite.
  bool skip_nonfinite = false;
  /// Skip the update when one of the two is more than this many standard deviations above its mean over the
  /// last skip_window updates; 0: off.
  double skip_zscore = 0.0;
  int64_t skip_window = 128;
  int64_t max_skipped_steps = 10;  ///< consecutive skipped steps; one more ends the run
  double slow_rank_factor = 1.5;   ///< ratio of a slow rank's own time to the others'; 0: not compared
  int64_t slow_rank_steps = 20;    ///< consecutive slow steps until the rank is named

  bool has_local_steps() const { return local_steps > 0; }
  bool may_skip_updates() const { return skip_nonfinite || skip_zscore > 0; }
};

/// The metric of metrics.jsonl by which validations are compared; of the validated step where it is one of
/// training.
enum class BestMetric {
  kValidationLoss,
  kValidationPerplexity,
  kValidationBitsPerByte,
  kValidationAccuracy,
  kValidationRewardAccuracies,
  kValidationRewardMargins,
  kLoss,
  kGradNorm
};
constexpr auto enum_names(BestMetric) {
  return std::to_array<util::EnumName<BestMetric>>(
      {{BestMetric::kValidationLoss, "validation_loss"},
       {BestMetric::kValidationPerplexity, "validation_perplexity"},
       {BestMetric::kValidationBitsPerByte, "validation_bits_per_byte"},
       {BestMetric::kValidationAccuracy, "validation_accuracy"},
       {BestMetric::kValidationRewardAccuracies, "validation_rewards/accuracies"},
       {BestMetric::kValidationRewardMargins, "validation_rewards/margins"},
       {BestMetric::kLoss, "loss"},
       {BestMetric::kGradNorm, "grad_norm"}});
}

struct EvaluationOptions {
  int64_t interval_steps = 0;  ///< steps between validations; 0: only after the last step
  int64_t max_samples = 0;     ///< samples of the validation files; 0: all
  bool accuracy = false;       ///< count the tokens that the model finds likeliest
  util::Named<BestMetric> best_metric = BestMetric::kValidationLoss;
  int64_t patience = 0;    ///< consecutive validations without a better one that end the run; 0: never
  double min_delta = 0.0;  ///< a better validation is better by more than this
  std::vector<std::string> tasks = {};  ///< files of questions (tools/generate/tasks.h)
};

/// Ranks that serve metrics: the first alone, or each at a port of its own.
enum class MetricsRanks { kFirst, kAll };
constexpr auto enum_names(MetricsRanks) {
  return std::to_array<util::EnumName<MetricsRanks>>(
      {{MetricsRanks::kFirst, "first"}, {MetricsRanks::kAll, "all"}});
}

struct LoggingOptions {
  int64_t interval_steps = 1;
  bool timestamps = false;  ///< wall-clock times in the lines on stderr
  bool trace_communication = false;
  /// Peak of a rank's matrix products in param_dtype, which MFU is relative to; 0: from the GPU's data sheet,
  /// or measured.
  double peak_tflops = 0.0;
  bool csv = false;          ///< metrics.csv beside metrics.jsonl
  bool tensorboard = false;  ///< event files of TensorBoard
  int64_t metrics_port = 0;  ///< port of the metrics for Prometheus (run/train/run_exporter.h); 0: none
  std::string metrics_host = "127.0.0.1";
  util::Named<MetricsRanks> metrics_ranks = MetricsRanks::kFirst;
  std::string metrics_textfile;  ///< file of the metrics for node_exporter; empty: none
  std::vector<int64_t> profile_steps;
  bool nvtx = false;             ///< ranges of operations and units for NVIDIA's profilers
  bool memory_snapshot = false;  ///< util::record_cuda_memory_history()
  int64_t sample_every = 0;      ///< steps between generated texts in the log; 0: never
  std::string sample_prompt;     ///< beginning of the texts; empty: new texts
  int64_t sample_tokens = 64;
};

/// The function that shards the model. Both have all options of the engine.
enum class Front {
  kFullyShard,  ///< fully_shard()
  kSpmd,        ///< spmd_fully_shard()
};
constexpr auto enum_names(Front) {
  return std::to_array<util::EnumName<Front>>({{Front::kFullyShard, "fully_shard"}, {Front::kSpmd, "spmd"}});
}

struct FsdpOptions : shard::ShardOptions {
  util::Named<Front> front = Front::kFullyShard;
};

/// Whether ranks keep their shards in param_dtype too; kAuto: on GPUs, where the casts cost more time.
enum class KeepChoice { kAuto, kTrue, kFalse };
constexpr auto enum_names(KeepChoice) {
  return std::to_array<util::EnumName<KeepChoice>>(
      {{KeepChoice::kAuto, "auto"}, {KeepChoice::kTrue, "true"}, {KeepChoice::kFalse, "false"}});
}

struct MixedPrecisionOptions : shard::MixedPrecisionOptions {
  util::Named<KeepChoice> keep_low_precision_shards = KeepChoice::kAuto;  ///< replaces that of the engine
};

struct Config {
  RunOptions run;
  nn::ModelOptions model;
  nn::LoraOptions lora;
  data::DataOptions data;
  TrainingOptions training;
  nn::PreferenceOptions preference;
  nn::DistillationOptions distillation;
  EvaluationOptions evaluation;
  optim::OptimizerOptions optimizer;
  optim::ScheduleOptions lr_scheduler;
  optim::OuterOptions outer_optimizer;
  FsdpOptions fsdp;
  MixedPrecisionOptions mixed_precision;
  optim::GradScalerOptions loss_scaler;
  nn::CheckpointingOptions activation_checkpointing;
  comm::MeshOptions mesh;
  comm::CommOptions comm;
  checkpoint::CheckpointOptions checkpoint;
  LoggingOptions logging;
  /// Values of the keys that plug-ins have added; options above that take such values hold copies.
  util::PluginValues plugin_values;
};

/// [fsdp] and [mixed_precision] in one struct, for an engine on a GPU or on the CPU.
inline shard::ShardOptions shard_options(const Config& config, bool on_gpu = false) {
  shard::ShardOptions options = config.fsdp;
  options.mixed_precision = config.mixed_precision;
  const auto keep = config.mixed_precision.keep_low_precision_shards;
  options.mixed_precision.keep_low_precision_shards =
      keep == KeepChoice::kAuto ? on_gpu : keep == KeepChoice::kTrue;
  options.trained_apart = config.lora.is_on();
  options.quantization_seed = static_cast<uint64_t>(config.run.seed);
  options.sums_by_sample = config.training.reproducible == Reproducible::kWorldSize;
  return options;
}

/// Whether the loss is scaled (state/groups/grad_scaler.h).
inline bool scales_loss(const Config& config) {
  const auto half = util::FloatType::kFloat16;
  return optim::uses_grad_scaler(config.loss_scaler, config.mixed_precision.param_dtype == half ||
                                                         config.mixed_precision.reduce_dtype == half);
}

/// Whether the update of a unit has to wait for its own gradient alone (run/train/arriving_gradients.h).
inline bool updates_units_alone(const Config& config) {
  const optim::OptimizerTraits* traits = optim::optimizer_traits().find(config.optimizer.name);
  return config.training.max_grad_norm == 0 && !scales_loss(config) && !config.training.may_skip_updates() &&
         config.training.reproducible == Reproducible::kRun && (traits == nullptr || traits->updates_alone);
}

}  // namespace fsdp::config
