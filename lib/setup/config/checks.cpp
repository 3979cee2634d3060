#include "setup/config/checks.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/util/error.h"
#include "base/util/text.h"
#include "data/options/datasets.h"
#include "model/families/architectures.h"
#include "model/families/families.h"
#include "model/families/rotary_scaling.h"
#include "setup/config/conflicts.h"
#include "setup/config/division.h"
#include "shard/units/option_conflicts.h"

namespace fsdp::config {
namespace {

using util::with_commas;

/// Limit for the tokens of one rank in a run: sample numbers, times any world size, stay inside 64 bits.
constexpr double kMaxRunTokens = 1e14;
/// Limit for the tokens of a micro-batch: sizes of activations stay inside 64 bits.
constexpr double kMaxMicroStepTokens = 1e9;

void check_heads(const nn::ModelOptions& model, Conflicts& conflicts) {
  int64_t heads = model.num_attention_heads;
  if (!nn::is_built_in_architecture(model.architecture)) return;  // ModelKind::check
  const int64_t key_value_heads = nn::key_value_heads(model);
  bool divides = model.head_dim > 0 || model.hidden_size % heads == 0;
  conflicts.unless(divides, {"model.hidden_size", "model.num_attention_heads", "model.head_dim"},
                   "must be a multiple of model.num_attention_heads, but is ",
                   division(model.hidden_size, heads), "; change one of the two");
  if (!nn::family_of(model).is_rotary()) return;
  conflicts.unless(
      heads % key_value_heads == 0, {"model.num_key_value_heads", "model.num_attention_heads"},
      "must divide model.num_attention_heads, but ",
      key_value_heads > heads ? concat(key_value_heads, " > ", heads) : division(heads, key_value_heads),
      "; change one of the two");
  const std::string what = concat(model.architecture, "'s");
  conflicts.unless(model.head_dim > 0 || !divides || model.hidden_size / heads % 2 == 0,
                   {"model.hidden_size", "model.num_attention_heads", "model.architecture"},
                   "/ model.num_attention_heads must be even, because ", what,
                   " rotary embedding rotates pairs of elements, but is ", model.hidden_size, " / ", heads,
                   " = ", model.hidden_size / heads,
                   "; change model.hidden_size or model.num_attention_heads");
  conflicts.unless(model.head_dim % 2 == 0, {"model.head_dim"}, "must be even, because ", what,
                   " rotary embedding rotates pairs of elements, but is ", model.head_dim, "; change it");
}

/// Every model must belong to a family to which it can be exported.
void check_family(const nn::ModelOptions& model, Conflicts& conflicts) {
  if (!nn::is_built_in_architecture(model.architecture)) return;
  conflicts.unless(nn::model_type_of(model) != nullptr,
                   {"model.qkv_bias", "model.sliding_window", "model.attention_bias", "model.mlp_bias"},
                   "(Qwen2), model.sliding_window (Mistral), and model.attention_bias or model.mlp_bias "
                   "(Llama) exclude each other, because no model family has more than one of them; "
                   "leave out all but one");
}

bool has_experts(const nn::ModelOptions& model) {
  return nn::is_built_in_architecture(model.architecture) && nn::family_of(model).has_experts();
}

void check_experts(const Config& config, Conflicts& conflicts) {
  const nn::ModelOptions& model = config.model;
  if (!has_experts(model)) return;
  const std::string with = concat("with model.architecture = \"", model.architecture, "\", but is ");
  conflicts.unless(model.num_experts >= 1, {"model.num_experts", "model.architecture"}, "must be at least 1 ",
                   with, model.num_experts, "; give it");
  conflicts.unless(model.num_experts_per_tok <= model.num_experts || model.num_experts < 1,
                   {"model.num_experts_per_tok", "model.num_experts"},
                   "must be at most model.num_experts = ", model.num_experts, ", but is ",
                   model.num_experts_per_tok, "; change one of the two");
  conflicts.unless(nn::expert_width(model) >= 1, {"model.moe_intermediate_size", "model.architecture"},
                   "must be at least 1 ", with, model.moe_intermediate_size, "; give it");
  conflicts.unless(
      !config.training.cuda_graphs, {"training.cuda_graphs", "model.num_experts"},
      "cannot be combined with experts, whose numbers of tokens differ between batches; leave it out");
  conflicts.unless(
      config.training.float8 == Float8Recipe::kNone, {"training.float8", "model.num_experts"},
      "cannot be combined with experts, because 8-bit products need multiples of 16 tokens; leave it "
      "out");
}

void check_rotary(const nn::ModelOptions& model, Conflicts& conflicts) {
  if (!nn::is_built_in_architecture(model.architecture)) return;
  const auto problem = nn::find_rope_problem(model);
  conflicts.unless(!problem, {concat("model.", problem ? problem->option : ""), "model.rope_type"},
                   problem ? problem->must : "");
}

void check_lengths(const Config& config, Conflicts& conflicts) {
  const data::DataOptions& data = config.data;
  const int64_t longest = nn::longest_sequence(config.model);
  conflicts.unless(data.sequence_length <= longest, {"data.sequence_length", "model.max_position_embeddings"},
                   "must be at most model.max_position_embeddings ",
                   longest > config.model.max_position_embeddings ? "* model.rope_factor = " : "= ", longest,
                   ", but is ", data.sequence_length, "; change one of the two");
  double micro_batch = static_cast<double>(data.micro_batch_size) * static_cast<double>(data.sequence_length);
  conflicts.unless(micro_batch <= kMaxMicroStepTokens, {"data.micro_batch_size", "data.sequence_length"},
                   "* data.sequence_length must be at most ", with_commas(1'000'000'000),
                   " tokens in a micro-batch, but is ", data.micro_batch_size, " * ", data.sequence_length,
                   "; reduce one of the two");
  // A world of one sees all of a global batch.
  const double rows = std::max(static_cast<double>(data.micro_batch_size) *
                                   static_cast<double>(config.training.gradient_accumulation_steps),
                               static_cast<double>(config.training.global_batch_size));
  double run = rows * static_cast<double>(data.sequence_length) * static_cast<double>(config.training.steps);
  conflicts.unless(
      run <= kMaxRunTokens,
      {"training.steps", "training.gradient_accumulation_steps", "data.micro_batch_size",
       "data.sequence_length", "training.global_batch_size"},
      "is too large: a rank may process at most ", with_commas(100'000'000'000'000),
      " tokens in a run, but this is ", config.training.steps, " * ",
      config.training.global_batch_size > 0
          ? concat(config.training.global_batch_size, " (training.global_batch_size)")
          : concat(config.training.gradient_accumulation_steps, " (training.gradient_accumulation_steps) * ",
                   data.micro_batch_size, " (data.micro_batch_size)"),
      " * ", data.sequence_length, " (data.sequence_length); reduce one of these");
}

/// Batches by number of tokens have another shape each.
void check_max_tokens(const Config& config, Conflicts& conflicts) {
  const data::DataOptions& data = config.data;
  if (data.max_tokens == 0) return;
  conflicts.unless(
      data.documents == data::DocumentTreatment::kSplit || data.dataset != data::kTokenFiles,
      {"data.max_tokens", "data.documents"},
      "requires data.documents = \"split\", because all rows have the same length otherwise, but that is \"",
      data.documents, "\"; set it, or use data.micro_batch_size instead");
  conflicts.unless(data.documents != data::DocumentTreatment::kMask, {"data.max_tokens", "data.documents"},
                   "cannot be combined with data.documents = \"mask\"; leave one of the two out");
  conflicts.unless(data.max_tokens >= data.sequence_length, {"data.max_tokens", "data.sequence_length"},
                   "must be at least data.sequence_length = ", data.sequence_length,
                   ", the longest row, but is ", data.max_tokens, "; change one of the two");
  conflicts.unless(
      !config.training.cuda_graphs, {"training.cuda_graphs", "data.max_tokens"},
      "cannot be combined with data.max_tokens, with which batches differ in shape; leave one of "
      "the two out");
  conflicts.unless(
      config.training.float8 == Float8Recipe::kNone, {"training.float8", "data.max_tokens"},
      "cannot be combined with data.max_tokens, because 8-bit products need multiples of 16 tokens; leave one "
      "of the two out");
}

void check_sets(const Config& config, Conflicts& conflicts) {
  conflicts.unless(config.data.train_on == data::TrainOn::kAll || config.data.dataset == data::kTokenFiles,
                   {"data.train_on", "data.dataset"}, "requires data.dataset = \"", data::kTokenFiles,
                   "\", whose companions say who wrote the tokens, but that is \"", config.data.dataset,
                   "\"; set it to all, and leave targets out in the data set");
  conflicts.unless(config.data.documents == data::DocumentTreatment::kJoin ||
                       config.data.document_separator < config.model.vocab_size,
                   {"data.document_separator", "model.vocab_size"},
                   "must be less than model.vocab_size = ", config.model.vocab_size, ", but is ",
                   config.data.document_separator, ", which occurs in no text; change one of the two");
  const std::vector<double>& weights = config.data.train_weights;
  conflicts.unless(weights.empty() || weights.size() == config.data.train.size(),
                   {"data.train_weights", "data.train"}, "must have one number for each of the ",
                   config.data.train.size(), " entries of data.train, but has ", weights.size(),
                   "; add or remove some");
  conflicts.unless(
      weights.empty() || config.training.epochs == 0, {"training.epochs", "data.train_weights"},
      "must be 0 with data.train_weights, because weighted data sets end at different times, but is ",
      config.training.epochs, "; set training.steps instead");
}

void check_optimizer(const Config& config, Conflicts& conflicts) {
  const optim::OptimizerOptions& options = config.optimizer;
  conflicts.unless(options.name != "muon" || options.momentum != 0, {"optimizer.momentum", "optimizer.name"},
                   "must be above 0 with optimizer.name = muon, but is 0; 0.95 is usual");
  const bool has_rates = std::any_of(options.groups.begin(), options.groups.end(),
                                     [](const auto& group) { return group.lr.has_value(); });
  conflicts.unless(!has_rates || options.lr != 0, {"optimizer.groups", "optimizer.lr"},
                   "must not set lr if optimizer.lr is 0, because groups follow the schedule of "
                   "optimizer.lr, but one does; set optimizer.lr, and lr_scale = 0 for the other "
                   "parameters");
}

void check_schedule(const Config& config, Conflicts& conflicts) {
  const optim::ScheduleOptions& schedule = config.lr_scheduler;
  // Stages that exceed the run are cut, with a warning (state/groups/learning_rate.h), so that a trial of a
  // few steps needs no other config.
  conflicts.unless(schedule.warmup_steps == 0 || schedule.warmup_ratio == 0,
                   {"lr_scheduler.warmup_ratio", "lr_scheduler.warmup_steps"},
                   "must be 0 if lr_scheduler.warmup_steps is set, but they are ", schedule.warmup_ratio,
                   " and ", schedule.warmup_steps, "; leave one of the two out, or set it to 0");
  conflicts.unless(schedule.name != "tri_stage" || schedule.min_lr_ratio > 0,
                   {"lr_scheduler.min_lr_ratio", "lr_scheduler.name"},
                   "must be above 0 for tri_stage, whose decay is exponential, but is 0; 0.01 is usual");
}

void check_training(const Config& config, Conflicts& conflicts) {
  const TrainingOptions& training = config.training;
  conflicts.unless(training.clip_grad_value == 0 || training.max_grad_norm == 0,
                   {"training.clip_grad_value", "training.max_grad_norm"},
                   "must be 0 if training.max_grad_norm is set, but they are ", training.clip_grad_value,
                   " and ", training.max_grad_norm, "; leave it out or set training.max_grad_norm to 0");
  conflicts.unless(training.gradient_accumulation_steps > 0 || training.global_batch_size > 0,
                   {"training.gradient_accumulation_steps"},
                   "must be at least 1 without training.global_batch_size, but is 0; set one of the two");
}

void check_float8(const Config& config, Conflicts& conflicts) {
  const bool float8 = config.training.float8 != Float8Recipe::kNone;
  const auto type = config.mixed_precision.param_dtype;
  conflicts.unless(!float8 || type == util::FloatType::kBFloat16,
                   {"training.float8", "mixed_precision.param_dtype"},
                   "requires mixed_precision.param_dtype = \"bfloat16\", in which everything else is "
                   "computed, but that is ",
                   type, "; change one of the two");
  const int64_t rows = config.data.micro_batch_size * config.data.sequence_length;
  conflicts.unless(!float8 || rows % 16 == 0,
                   {"training.float8", "data.micro_batch_size", "data.sequence_length"},
                   "requires the number of tokens in a micro-batch to be a multiple of 16, because of "
                   "its 8-bit matrix products, but that is ",
                   config.data.micro_batch_size, " (data.micro_batch_size) * ", config.data.sequence_length,
                   " (data.sequence_length) = ", division(rows, 16), "; change one of the two");
}

void check_token_ranges(const Config& config, Conflicts& conflicts) {
  const auto unless = [&](bool condition, const std::string& key, const std::string& message) {
    conflicts.unless(config.activation_checkpointing.feed_forward_tokens == 0 || condition,
                     {"activation_checkpointing.feed_forward_tokens", key}, message);
  };
  unless(
      config.mesh.model == 1, "mesh.model",
      concat("requires mesh.model = 1, because ranks that share a layer would communicate for each range of "
             "tokens, but that is ",
             config.mesh.model, "; leave one of the two out"));
  unless(!config.training.cuda_graphs, "training.cuda_graphs",
         "requires training.cuda_graphs = false, because graphs of recomputed layers would keep their "
         "activations, but that is true; leave one of the two out");
  unless(
      config.training.reproducible != Reproducible::kWorldSize, "training.reproducible",
      "requires training.reproducible other than \"world_size\", which adds up the gradients of a sample in one "
      "product, but that is \"world_size\"; leave one of the two out");
}

/// A graph repeats exactly what was captured.
void check_cuda_graphs(const Config& config, Conflicts& conflicts) {
  const auto unless = [&](bool condition, const std::string& key, const std::string& message) {
    conflicts.unless(!config.training.cuda_graphs || condition, {"training.cuda_graphs", key}, message);
  };
  unless(config.activation_checkpointing.mode == nn::RecomputeMode::kNone, "activation_checkpointing.mode",
         concat("requires activation_checkpointing.mode = \"none\", because graphs of recomputed "
                "blocks would keep their activations, but that is \"",
                config.activation_checkpointing.mode, "\"; leave one of the two out"));
  const bool masks = config.data.documents == data::DocumentTreatment::kMask;
  unless(!masks || config.mixed_precision.param_dtype != util::FloatType::kFloat32,
         "mixed_precision.param_dtype",
         concat("requires mixed_precision.param_dtype of 16 bits with data.documents = \"mask\", because "
                "attention in fp32 is launched for each document, but that is ",
                config.mixed_precision.param_dtype, "; change it, or leave one of the two out"));
  unless(!masks || config.model.attn_logit_softcapping == 0, "model.attn_logit_softcapping",
         concat("requires model.attn_logit_softcapping = 0 with data.documents = \"mask\", because attention "
                "with a cap is launched for each document, but that is ",
                config.model.attn_logit_softcapping, "; leave one of the two out"));
  unless(config.model.attention_dropout == 0 && config.model.hidden_dropout == 0, "model.hidden_dropout",
         concat("requires blocks without dropout, because a graph would drop the same elements in "
                "every step, but model.attention_dropout = ",
                config.model.attention_dropout, " and model.hidden_dropout = ", config.model.hidden_dropout,
                "; leave one of the two out"));
  unless(config.model.embedding_dropout == 0, "model.embedding_dropout",
         concat("requires a model without dropout, but model.embedding_dropout = ",
                config.model.embedding_dropout, "; leave one of the two out"));
}

void check_context(const Config& config, Conflicts& conflicts) {
  if (config.mesh.context == 1) return;
  const auto unless = [&](bool condition, const std::string& key, const std::string& message) {
    conflicts.unless(condition, {"mesh.context", key}, concat("must be 1 ", message));
  };
  const std::string& architecture = config.model.architecture;
  unless(nn::is_built_in_architecture(architecture), "model.architecture",
         concat("with model.architecture = \"", architecture,
                "\", because only built-in models attend over parts of sequences; leave one of the two out"));
  unless(
      config.model.attention_dropout == 0, "model.attention_dropout",
      concat(
          "with dropout of attention weights, which never exist as a whole, but model.attention_dropout = ",
          config.model.attention_dropout, "; leave one of the two out"));
  unless(config.data.max_tokens == 0, "data.max_tokens",
         concat("with data.max_tokens, because rows must all have the length that is cut, but that is ",
                config.data.max_tokens, "; leave one of the two out"));
  unless(
      !config.training.cuda_graphs, "training.cuda_graphs",
      "with training.cuda_graphs, because a graph of a block would hold its communication; leave one of the two "
      "out");
  unless(config.fsdp.front != Front::kSpmd, "fsdp.front",
         "with fsdp.front = \"spmd\", whose marks state contiguous parts; leave one of the two out");
}

void check_tensor_parallel(const Config& config, Conflicts& conflicts) {
  if (config.mesh.model == 1) return;
  const auto unless = [&](bool condition, const std::string& key, const std::string& message) {
    conflicts.unless(condition, {"mesh.model", key}, concat("must be 1 ", message));
  };
  unless(
      config.data.max_tokens == 0 || !config.mesh.sequence_parallel, "data.max_tokens",
      concat(
          "with data.max_tokens, because rows must all have the length that mesh.sequence_parallel cuts, but "
          "that is ",
          config.data.max_tokens, "; leave one of the two out or set mesh.sequence_parallel = false"));
  unless(
      !config.training.cuda_graphs, "training.cuda_graphs",
      "with training.cuda_graphs, because a graph of a block would hold its communication; leave one of the two "
      "out");
  unless(config.fsdp.front != Front::kSpmd, "fsdp.front",
         "with fsdp.front = \"spmd\", whose marks state whole parameters; leave one of the two out");
  unless(config.logging.sample_every == 0, "logging.sample_every",
         concat("with logging.sample_every, because single tokens cannot be cut, but that is ",
                config.logging.sample_every, "; leave one of the two out"));
}

void check_lora(const Config& config, Conflicts& conflicts) {
  if (!config.lora.is_on()) return;
  const auto unless = [&](bool condition, const std::string& key, const std::string& message) {
    conflicts.unless(condition, {"lora.rank", key},
                     concat("must be 0 ", message, "; leave one of the two out"));
  };
  unless(
      config.mesh.model == 1, "mesh.model",
      "with mesh.model, because adapters of layers that several processes compute together are not supported");
  conflicts.unless(
      config.lora.quantize == nn::BaseQuantization::kNone || !config.lora.dora,
      {"lora.quantize", "lora.dora"},
      concat("must be \"none\" with lora.dora = true, which needs the norms of whole weights; leave one "
             "of the two out"));
  conflicts.unless(
      config.lora.quantize == nn::BaseQuantization::kNone || config.training.float8 == Float8Recipe::kNone,
      {"lora.quantize", "training.float8"},
      concat("must be \"none\" with training.float8, because one weight has one type; leave one of the "
             "two out"));
  unless(
      config.checkpoint.init_from.empty(), "checkpoint.init_from",
      "with checkpoint.init_from, because checkpoints of adapters name the weights in model.init_from, which may be "
      "those of a checkpoint");
  unless(!config.training.cuda_graphs, "training.cuda_graphs",
         "with training.cuda_graphs, because the adapters of all blocks are in one unit");
}

void check_evaluation(const Config& config, Conflicts& conflicts) {
  conflicts.unless(
      config.evaluation.best_metric != BestMetric::kValidationAccuracy || config.evaluation.accuracy,
      {"evaluation.best_metric", "evaluation.accuracy"},
      "must be a metric that is reported, but is validation_accuracy; set evaluation.accuracy = true");
  const auto without = [&](bool condition, const char* key, const std::string& why) {
    conflicts.unless(config.evaluation.tasks.empty() || condition, {"evaluation.tasks", key},
                     concat("must be empty with ", key, ", ", why, "; leave one of the two out"));
  };
  without(config.mesh.context <= 1, "mesh.context", "over which questions, of any length, are not cut");
  without(config.fsdp.front != Front::kSpmd, "fsdp.front", "whose ranks compute parts of one batch");
}

void check_samples(const Config& config, Conflicts& conflicts) {
  const LoggingOptions& logging = config.logging;
  conflicts.unless(!logging.nvtx || logging.profile_steps.empty(), {"logging.nvtx", "logging.profile_steps"},
                   "cannot be combined with logging.profile_steps, because libtorch runs one profiler "
                   "at a time; leave one of the two out");
  conflicts.unless(logging.sample_every == 0 || logging.sample_tokens < config.model.max_position_embeddings,
                   {"logging.sample_tokens", "model.max_position_embeddings"},
                   "must be less than the longest sequence of the model, ",
                   config.model.max_position_embeddings, ", to leave room for a prompt, but is ",
                   logging.sample_tokens, "; change one of the two");
}

void check_loss_scaler(const Config& config, Conflicts& conflicts) {
  const optim::GradScalerOptions& scaler = config.loss_scaler;
  conflicts.unless(scaler.min_scale <= scaler.init_scale, {"loss_scaler.min_scale", "loss_scaler.init_scale"},
                   "must be at most loss_scaler.init_scale = ", scaler.init_scale, ", but is ",
                   scaler.min_scale, "; change one of the two");
}

void check_checkpoints(const Config& config, Conflicts& conflicts) {
  const checkpoint::CheckpointOptions& options = config.checkpoint;
  conflicts.unless(options.init_from.empty() || config.model.init_from.empty(),
                   {"checkpoint.init_from", "model.init_from"},
                   "cannot be combined with model.init_from, because initial weights have one source; "
                   "leave one of the two out");
  conflicts.unless(
      options.schedule != checkpoint::SaveTimes::kContinuous || options.asynchronous,
      {"checkpoint.schedule", "checkpoint.asynchronous"},
      "must be interval or auto without checkpoint.asynchronous, because training would stand still while "
      "one save follows another, but is ",
      options.schedule, "; change it or set checkpoint.asynchronous = true");
  const std::string& store = options.upload_to;
  conflicts.unless(
      store.empty() || store.starts_with("s3://") || store.starts_with("gs://"), {"checkpoint.upload_to"},
      "must be a folder in a store that can be written, s3://BUCKET/FOLDER or gs://BUCKET/FOLDER, but is ",
      util::printable(store), "; correct it, or leave it out");
}

void check_metrics(const LoggingOptions& logging, Conflicts& conflicts) {
  const std::string& file = logging.metrics_textfile;
  conflicts.unless(
      file.empty() || file.ends_with(".prom"), {"logging.metrics_textfile"},
      "must be a name that ends with .prom, because node_exporter reads no other files, but is \"", file,
      "\"; rename it");
}

void check_sharding(const Config& config, Conflicts& conflicts) {
  conflicts.unless(
      config.fsdp.front != Front::kSpmd || config.data.max_tokens == 0, {"data.max_tokens", "fsdp.front"},
      "must be 0, because with fsdp.front = spmd the batches of all ranks are parts of one, of the "
      "same shape, but is ",
      config.data.max_tokens, "; leave one of the two out");
  conflicts.unless(
      !config.fsdp.error_feedback || !scales_loss(config), {"fsdp.error_feedback", "loss_scaler.enabled"},
      "must be false with a scaled loss, because the errors of one step would be added to gradients of another "
      "scale, but is ",
      "true", "; leave it out, or use bfloat16 in place of float16");
  conflicts.unless(
      !config.fsdp.error_feedback || config.mesh.model == 1, {"fsdp.error_feedback", "mesh.model"},
      "must be false with mesh.model above 1, because processes with different parts of the layers keep errors of "
      "different sizes, which a checkpoint cannot join, but is ",
      "true", "; leave one of the two out");
  for (const shard::OptionConflict& conflict : shard::find_option_conflicts(shard_options(config))) {
    conflicts.found.push_back({conflict.fields, conflict.message});
  }
}

}  // namespace

std::vector<Conflict> find_conflicts(const Config& config) {
  Conflicts conflicts;
  check_heads(config.model, conflicts);
  check_family(config.model, conflicts);
  check_experts(config, conflicts);
  check_rotary(config.model, conflicts);
  check_lengths(config, conflicts);
  check_max_tokens(config, conflicts);
  check_sets(config, conflicts);
  check_optimizer(config, conflicts);
  check_schedule(config, conflicts);
  check_training(config, conflicts);
  check_float8(config, conflicts);
  check_cuda_graphs(config, conflicts);
  check_token_ranges(config, conflicts);
  check_context(config, conflicts);
  check_tensor_parallel(config, conflicts);
  check_lora(config, conflicts);
  check_evaluation(config, conflicts);
  check_samples(config, conflicts);
  check_sharding(config, conflicts);
  check_loss_scaler(config, conflicts);
  check_checkpoints(config, conflicts);
  check_metrics(config.logging, conflicts);
  std::ranges::move(find_conflicts_of_objective(config), std::back_inserter(conflicts.found));
  std::ranges::move(find_conflicts_of_reproducible(config), std::back_inserter(conflicts.found));
  std::ranges::move(find_conflicts_of_local_steps(config), std::back_inserter(conflicts.found));
  return std::move(conflicts.found);
}

}  // namespace fsdp::config
