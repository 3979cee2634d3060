#include "config/checks.h"

#include <algorithm>
#include <utility>

#include "comm/mesh_shape.h"
#include "nn/architectures.h"
#include "shard/option_conflicts.h"
#include "util/error.h"
#include "util/text.h"

namespace fsdp::config {
namespace {

using util::concat;
using util::with_commas;

/// Limit for the tokens of one rank in a run: sample numbers, times any world size, stay inside 64 bits.
constexpr double kMaxRunTokens = 1e14;
/// Limit for the tokens of a micro-batch: sizes of activations stay inside 64 bits.
constexpr double kMaxMicroStepTokens = 1e9;

struct Conflicts {
  /// The message starts with the first of the keys.
  template <typename... Parts>
  void unless(bool condition, std::vector<std::string> keys, const Parts&... message) {
    if (condition) return;
    std::string text = concat(keys.front(), ": ", message...);
    found.push_back({std::move(keys), std::move(text)});
  }

  std::vector<Conflict> found;
};

/// "256 = 36 * 7 + 4".
std::string division(int64_t value, int64_t divisor) {
  return concat(value, " = ", value / divisor, " * ", divisor, " + ", value % divisor);
}

void check_heads(const nn::ModelOptions& model, Conflicts& conflicts) {
  int64_t heads = model.num_attention_heads;
  int64_t key_value_heads = model.num_key_value_heads;
  if (!nn::is_built_in_architecture(model.architecture)) return;  // ModelKind::check
  bool divides = model.head_dim > 0 || model.hidden_size % heads == 0;
  conflicts.unless(divides, {"model.hidden_size", "model.num_attention_heads", "model.head_dim"},
                   "expected a multiple of model.num_attention_heads; found ",
                   division(model.hidden_size, heads), "; change one of the two");
  if (model.architecture == "gpt2") {
    const bool has_none = model.head_dim == 0 && !model.attention_bias && !model.qkv_bias &&
                          !model.mlp_bias && model.sliding_window == 0 &&
                          model.rope_type == nn::RopeType::kDefault &&
                          model.hidden_act == nn::Activation::kSilu;
    conflicts.unless(has_none,
                     {"model.architecture", "model.head_dim", "model.attention_bias", "model.qkv_bias",
                      "model.mlp_bias", "model.hidden_act", "model.sliding_window", "model.rope_type"},
                     "expected llama with head_dim, attention_bias, qkv_bias, mlp_bias, hidden_act, "
                     "sliding_window or rope_type; found gpt2; leave them out");
    conflicts.unless(key_value_heads == heads,
                     {"model.num_key_value_heads", "model.num_attention_heads", "model.architecture"},
                     "expected model.num_attention_heads = ", heads,
                     ", because gpt2 has no grouped-query attention; found ", key_value_heads,
                     "; leave it out");
    return;
  }
  conflicts.unless(
      heads % key_value_heads == 0, {"model.num_key_value_heads", "model.num_attention_heads"},
      "expected a divisor of model.num_attention_heads; found ",
      key_value_heads > heads ? concat(key_value_heads, " > ", heads) : division(heads, key_value_heads),
      "; change one of the two");
  conflicts.unless(model.head_dim > 0 || !divides || model.hidden_size / heads % 2 == 0,
                   {"model.hidden_size", "model.num_attention_heads", "model.architecture"},
                   "expected heads of an even width, because llama's rotary embedding turns pairs; found ",
                   model.hidden_size, " / ", heads, " = ", model.hidden_size / heads,
                   "; change model.hidden_size or model.num_attention_heads");
  conflicts.unless(model.head_dim % 2 == 0, {"model.head_dim"},
                   "expected an even width, because llama's rotary embedding turns pairs; found ",
                   model.head_dim, "; change it");
}

/// Every model must belong to a family to which it can be exported.
void check_family(const nn::ModelOptions& model, Conflicts& conflicts) {
  if (!nn::is_built_in_architecture(model.architecture)) return;
  const bool window = model.sliding_window > 0, llama_bias = model.attention_bias || model.mlp_bias;
  conflicts.unless(model.qkv_bias + window + llama_bias <= 1,
                   {"model.qkv_bias", "model.sliding_window", "model.attention_bias", "model.mlp_bias"},
                   "expected one of qkv_bias (Qwen2), sliding_window (Mistral), and attention_bias or "
                   "mlp_bias (Llama) at most, because no family of models has several; found more; leave "
                   "out all but one");
}

void check_first_weights(const nn::ModelOptions& model, Conflicts& conflicts) {
  conflicts.unless(model.init_unused.empty() || !model.init_from.empty(),
                   {"model.init_unused", "model.init_from"}, "expected none without model.init_from; found ",
                   model.init_unused.size(), "; leave it out or name weights in model.init_from");
}

void check_rotary(const nn::ModelOptions& model, Conflicts& conflicts) {
  conflicts.unless(model.rope_type != nn::RopeType::kDefault || model.rope_factor == 1,
                   {"model.rope_factor", "model.rope_type"},
                   "expected 1 with model.rope_type default; found ", model.rope_factor,
                   "; set model.rope_type to linear or llama3, or leave it out");
  conflicts.unless(
      model.rope_type != nn::RopeType::kLlama3 || model.rope_low_freq_factor < model.rope_high_freq_factor,
      {"model.rope_low_freq_factor", "model.rope_high_freq_factor", "model.rope_type"},
      "expected less than model.rope_high_freq_factor = ", model.rope_high_freq_factor, "; found ",
      model.rope_low_freq_factor, "; 1 and 4 are Llama 3's");
}

void check_lengths(const Config& config, Conflicts& conflicts) {
  const data::DataOptions& data = config.data;
  conflicts.unless(config.model.sliding_window == 0 || data.sequence_length <= config.model.sliding_window,
                   {"data.sequence_length", "model.sliding_window"},
                   "expected at most model.sliding_window = ", config.model.sliding_window,
                   ", beyond which attention would have to forget; found ", data.sequence_length,
                   "; make it smaller");
  conflicts.unless(data.sequence_length <= config.model.max_position_embeddings,
                   {"data.sequence_length", "model.max_position_embeddings"},
                   "expected at most model.max_position_embeddings = ", config.model.max_position_embeddings,
                   "; found ", data.sequence_length, "; change one of the two");
  double micro_batch = static_cast<double>(data.micro_batch_size) * static_cast<double>(data.sequence_length);
  conflicts.unless(micro_batch <= kMaxMicroStepTokens, {"data.micro_batch_size", "data.sequence_length"},
                   "expected at most ", with_commas(1'000'000'000), " tokens in a micro-batch; found ",
                   data.micro_batch_size, " * ", data.sequence_length,
                   " (data.sequence_length); make one of the two smaller");
  // A world of one sees all of a global batch.
  const double rows = std::max(static_cast<double>(data.micro_batch_size) *
                                   static_cast<double>(config.training.gradient_accumulation_steps),
                               static_cast<double>(config.training.global_batch_size));
  double run = rows * static_cast<double>(data.sequence_length) * static_cast<double>(config.training.steps);
  conflicts.unless(
      run <= kMaxRunTokens,
      {"training.steps", "training.gradient_accumulation_steps", "data.micro_batch_size",
       "data.sequence_length", "training.global_batch_size"},
      "expected at most ", with_commas(100'000'000'000'000), " tokens of a rank in the whole run; found ",
      config.training.steps, " * ",
      config.training.global_batch_size > 0
          ? concat(config.training.global_batch_size, " (training.global_batch_size)")
          : concat(config.training.gradient_accumulation_steps, " (training.gradient_accumulation_steps) * ",
                   data.micro_batch_size, " (data.micro_batch_size)"),
      " * ", data.sequence_length, " (data.sequence_length); make one of them smaller");
}

void check_sets(const Config& config, Conflicts& conflicts) {
  conflicts.unless(config.data.documents == data::DocumentTreatment::kJoin ||
                       config.data.document_separator < config.model.vocab_size,
                   {"data.document_separator", "model.vocab_size"},
                   "expected a token below model.vocab_size = ", config.model.vocab_size, "; found ",
                   config.data.document_separator, ", which no text has; change one of the two");
  const std::vector<double>& weights = config.data.train_weights;
  conflicts.unless(weights.empty() || weights.size() == config.data.train.size(),
                   {"data.train_weights", "data.train"}, "expected one number for each of the ",
                   config.data.train.size(), " entries of data.train; found ", weights.size(),
                   "; add or remove some");
  conflicts.unless(weights.empty() || config.training.epochs == 0, {"training.epochs", "data.train_weights"},
                   "expected 0 with data.train_weights, because sets with weights end at different times; "
                   "found ",
                   config.training.epochs, "; give training.steps");
}

void check_optimizer(const Config& config, Conflicts& conflicts) {
  const optim::OptimizerOptions& options = config.optimizer;
  const bool sgd = options.name == "sgd", muon = options.name == "muon", momentum = options.momentum != 0;
  conflicts.unless(
      !muon || momentum, {"optimizer.momentum", "optimizer.name"},
      "expected a number above 0 with optimizer.name muon; found 0; set it to 0.95, as is usual");
  const bool has_rates = std::any_of(options.groups.begin(), options.groups.end(),
                                     [](const auto& group) { return group.lr.has_value(); });
  conflicts.unless(!has_rates || options.lr != 0, {"optimizer.groups", "optimizer.lr"},
                   "expected no lr with optimizer.lr = 0, because groups follow the schedule of that; found "
                   "one; give optimizer.lr and groups with lr_scale = 0 for the rest");
  conflicts.unless(options.dampening == 0 || (sgd && momentum),
                   {"optimizer.dampening", "optimizer.name", "optimizer.momentum"},
                   "expected 0 unless optimizer.name is sgd with a momentum; found ", options.dampening,
                   " with ", options.name, " and optimizer.momentum = ", options.momentum, "; leave it out");
  conflicts.unless(!options.nesterov || muon || (sgd && momentum && options.dampening == 0),
                   {"optimizer.nesterov", "optimizer.name", "optimizer.momentum", "optimizer.dampening"},
                   "expected false unless optimizer.name is muon, or sgd with a momentum and without "
                   "dampening; found true with ",
                   options.name, ", optimizer.momentum = ", options.momentum,
                   " and optimizer.dampening = ", options.dampening, "; leave it out");
}

void check_schedule(const Config& config, Conflicts& conflicts) {
  const optim::ScheduleOptions& schedule = config.lr_scheduler;
  // Phases that exceed the run are cut, with a warning (optim/schedule.h), so that a trial of a few steps
  // needs no other config.
  conflicts.unless(schedule.warmup_steps == 0 || schedule.warmup_ratio == 0,
                   {"lr_scheduler.warmup_ratio", "lr_scheduler.warmup_steps"},
                   "expected 0 beside lr_scheduler.warmup_steps; found ", schedule.warmup_ratio, " and ",
                   schedule.warmup_steps, " steps; leave one of the two out, or set it to 0");
  const bool tri_stage = schedule.name == "tri_stage";
  conflicts.unless(tri_stage || schedule.hold_steps == 0, {"lr_scheduler.hold_steps", "lr_scheduler.name"},
                   "expected 0 unless lr_scheduler.name is tri_stage; found ", schedule.hold_steps,
                   "; leave it out");
  conflicts.unless(!tri_stage || schedule.min_lr_ratio > 0,
                   {"lr_scheduler.min_lr_ratio", "lr_scheduler.name"},
                   "expected a number above 0 with tri_stage, whose decay is exponential; found 0; 0.01 is "
                   "usual");
}

void check_training(const Config& config, Conflicts& conflicts) {
  const TrainingOptions& training = config.training;
  conflicts.unless(
      training.loss == nn::kCrossEntropy || (training.label_smoothing == 0 && training.z_loss == 0),
      {"training.loss", "training.label_smoothing", "training.z_loss"},
      "expected cross_entropy with training.label_smoothing or training.z_loss, which are "
      "terms of it; found ",
      training.loss, "; leave these out");
  conflicts.unless(training.clip_grad_value == 0 || training.max_grad_norm == 0,
                   {"training.clip_grad_value", "training.max_grad_norm"},
                   "expected 0 beside training.max_grad_norm = ", training.max_grad_norm, "; found ",
                   training.clip_grad_value, "; leave it out or set training.max_grad_norm to 0");
  conflicts.unless(training.gradient_accumulation_steps > 0 || training.global_batch_size > 0,
                   {"training.gradient_accumulation_steps"},
                   "expected an integer >= 1 without training.global_batch_size; found 0; give one of the "
                   "two");
  conflicts.unless(training.batch_warmup_steps == 0 || training.gradient_accumulation_steps != 1,
                   {"training.batch_warmup_steps", "training.gradient_accumulation_steps"},
                   "expected 0 with one micro-batch a step; found ", training.batch_warmup_steps,
                   "; raise training.gradient_accumulation_steps, which the batch grows to, or leave it out");
}

void check_float8(const Config& config, Conflicts& conflicts) {
  const bool float8 = config.training.float8 != Float8Recipe::kNone;
  const auto type = config.mixed_precision.param_dtype;
  conflicts.unless(!float8 || type == util::FloatType::kBFloat16,
                   {"training.float8", "mixed_precision.param_dtype"},
                   "expected mixed_precision.param_dtype = \"bfloat16\", in which everything else is "
                   "computed; found ",
                   type, "; change one of the two");
  const int64_t rows = config.data.micro_batch_size * config.data.sequence_length;
  conflicts.unless(!float8 || rows % 16 == 0,
                   {"training.float8", "data.micro_batch_size", "data.sequence_length"},
                   "expected a multiple of 16 as the tokens of a micro-batch, because products in 8 bits "
                   "need multiples of 16; found ",
                   config.data.micro_batch_size, " (data.micro_batch_size) * ", config.data.sequence_length,
                   " (data.sequence_length) = ", division(rows, 16), "; change one of the two");
  conflicts.unless(float8 || config.training.float8_exclude.empty(),
                   {"training.float8_exclude", "training.float8"},
                   "expected none with training.float8 = \"none\"; found ",
                   config.training.float8_exclude.size(), "; leave it out");
}

/// A graph repeats exactly what was captured.
void check_cuda_graphs(const Config& config, Conflicts& conflicts) {
  const auto unless = [&](bool condition, const std::string& key, const std::string& message) {
    conflicts.unless(!config.training.cuda_graphs || condition, {"training.cuda_graphs", key}, "" + message);
  };
  unless(config.training.device != DeviceChoice::kCpu, "training.device",
         "expected training.device = \"cuda\"; found \"cpu\", which has no graphs; leave it out");
  unless(config.activation_checkpointing.mode == nn::RecomputeMode::kNone, "activation_checkpointing.mode",
         concat("expected activation_checkpointing.mode = \"none\", because graphs of recomputed blocks "
                "would keep their activations; found \"",
                config.activation_checkpointing.mode, "\"; leave one of the two out"));
  unless(config.data.documents != data::DocumentTreatment::kMask, "data.documents",
         "expected data.documents other than \"mask\", with which shapes differ between batches; "
         "found \"mask\"; leave one of the two out");
  unless(config.model.attention_dropout == 0 && config.model.hidden_dropout == 0, "model.hidden_dropout",
         concat("expected no dropout in the blocks, because a graph would drop the same elements in "
                "every step; found model.attention_dropout = ",
                config.model.attention_dropout, " and model.hidden_dropout = ", config.model.hidden_dropout,
                "; leave one of the two out"));
  unless(config.model.embedding_dropout == 0, "model.embedding_dropout",
         concat("expected no dropout; found model.embedding_dropout = ", config.model.embedding_dropout,
                "; leave one of the two out"));
}

void check_evaluation(const Config& config, Conflicts& conflicts) {
  conflicts.unless(config.evaluation.interval_steps == 0 || !config.data.validation.empty(),
                   {"evaluation.interval_steps", "data.validation"},
                   "expected 0, because data.validation names no files; found ",
                   config.evaluation.interval_steps, "; set it to 0 or give data.validation files");
  conflicts.unless(config.evaluation.patience == 0 || config.evaluation.interval_steps > 0,
                   {"evaluation.patience", "evaluation.interval_steps"},
                   "expected 0 without validations during the run; found ", config.evaluation.patience,
                   "; set evaluation.interval_steps, or leave it out");
  conflicts.unless(!config.checkpoint.keep_best || config.evaluation.interval_steps > 0,
                   {"checkpoint.keep_best", "evaluation.interval_steps"},
                   "expected false without validations during the run; found true; set "
                   "evaluation.interval_steps, or leave it out");
}

void check_samples(const Config& config, Conflicts& conflicts) {
  const LoggingOptions& logging = config.logging;
  conflicts.unless(!logging.nvtx || logging.profile_steps.empty(), {"logging.nvtx", "logging.profile_steps"},
                   "expected no logging.profile_steps beside it, because libtorch has one profiler at a "
                   "time; found some; leave one of the two out");
  conflicts.unless(!logging.nvtx || config.training.device != DeviceChoice::kCpu,
                   {"logging.nvtx", "training.device"},
                   "expected training.device = \"cuda\"; found \"cpu\", which has no such ranges; leave it "
                   "out");
  conflicts.unless(!logging.memory_snapshot || config.training.device != DeviceChoice::kCpu,
                   {"logging.memory_snapshot", "training.device"},
                   "expected training.device = \"cuda\"; found \"cpu\", whose memory has no such history; "
                   "leave it out");
  conflicts.unless(logging.sample_every == 0 || logging.sample_tokens < nn::longest_sequence(config.model),
                   {"logging.sample_tokens", "model.max_position_embeddings", "model.sliding_window"},
                   "expected less than the longest sequence of the model, ",
                   nn::longest_sequence(config.model), ", with room for a prompt; found ",
                   logging.sample_tokens, "; change one of the two");
}

void check_loss_scaler(const Config& config, Conflicts& conflicts) {
  const optim::GradScalerOptions& scaler = config.loss_scaler;
  const shard::MixedPrecisionOptions& precision = config.mixed_precision;
  const auto half = util::FloatType::kFloat16;
  const bool float16 = precision.param_dtype == half || precision.reduce_dtype == half;
  conflicts.unless(scaler.enabled != optim::ScalerChoice::kTrue || float16,
                   {"loss_scaler.enabled", "mixed_precision.param_dtype", "mixed_precision.reduce_dtype"},
                   "expected auto or false, because only float16 gradients can overflow; found true with "
                   "param_dtype ",
                   precision.param_dtype, " and reduce_dtype ", precision.reduce_dtype, "; leave it out");
  conflicts.unless(scaler.min_scale <= scaler.init_scale, {"loss_scaler.min_scale", "loss_scaler.init_scale"},
                   "expected at most loss_scaler.init_scale = ", scaler.init_scale, "; found ",
                   scaler.min_scale, "; change one of the two");
}

void check_checkpoints(const Config& config, Conflicts& conflicts) {
  const checkpoint::CheckpointOptions& options = config.checkpoint;
  conflicts.unless(!options.asynchronous || options.kind == checkpoint::CheckpointKind::kSharded,
                   {"checkpoint.asynchronous", "checkpoint.kind"},
                   "expected false with checkpoint.kind = \"full\", because the shards travel to rank 0 "
                   "between steps; found true; leave one of the two out (fsdp-ckpt consolidate makes one "
                   "file of a sharded checkpoint)");
  conflicts.unless(options.keep_every == 0 || options.keep_last > 0,
                   {"checkpoint.keep_every", "checkpoint.keep_last"},
                   "expected 0 with checkpoint.keep_last = 0, which keeps all; found ", options.keep_every,
                   "; leave it out or give checkpoint.keep_last a number");
  const bool starts_elsewhere = !options.init_from.empty();
  conflicts.unless(!starts_elsewhere || config.model.init_from.empty(),
                   {"checkpoint.init_from", "model.init_from"},
                   "expected one source of the first weights; found model.init_from too; leave one of the "
                   "two out");
  const std::pair<const char*, const std::vector<std::string>*> lists[] = {
      {"checkpoint.init_only", &options.init_only}, {"checkpoint.init_missing", &options.init_missing}};
  for (const auto& [key, patterns] : lists) {
    conflicts.unless(starts_elsewhere || patterns->empty(), {key, "checkpoint.init_from"},
                     "expected none without checkpoint.init_from; found ", patterns->size(),
                     "; leave it out or name a checkpoint in checkpoint.init_from");
  }
}

void check_sharding(const Config& config, Conflicts& conflicts) {
  for (const shard::OptionConflict& conflict : shard::find_option_conflicts(shard_options(config))) {
    conflicts.found.push_back({conflict.fields, conflict.message});
  }
}

}  // namespace

std::vector<Conflict> find_conflicts(const Config& config) {
  Conflicts conflicts;
  check_heads(config.model, conflicts);
  check_family(config.model, conflicts);
  check_rotary(config.model, conflicts);
  check_first_weights(config.model, conflicts);
  check_lengths(config, conflicts);
  check_sets(config, conflicts);
  check_optimizer(config, conflicts);
  check_schedule(config, conflicts);
  check_training(config, conflicts);
  check_float8(config, conflicts);
  check_cuda_graphs(config, conflicts);
  check_evaluation(config, conflicts);
  check_samples(config, conflicts);
  check_sharding(config, conflicts);
  check_loss_scaler(config, conflicts);
  check_checkpoints(config, conflicts);
  return std::move(conflicts.found);
}

void check_world(const Config& config, int world_size) { comm::resolve_mesh(config.mesh, world_size); }

}  // namespace fsdp::config
