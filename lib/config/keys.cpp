#include "config/keys.h"

#include <algorithm>
#include <limits>
#include <type_traits>

#include "config/model_presets.h"

namespace fsdp::config {
namespace {

/// Section, name and field of a key at once: names in TOML are those of the fields, so they cannot drift.
#define KEY(section, name) \
#section, #name, [](Config & c) -> auto& { return c.section.name; }

// The upper bounds keep products such as batch * sequence * vocabulary inside 64 bits; no real model comes
// near.
constexpr double kMaxWidth = 1'000'000;
constexpr double kMaxHeads = 1024;
constexpr double kMaxPositions = 10'000'000;
constexpr double kMaxMeshAxis = 1'000'000;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

Constraint at_least_one_or_inf() { return {.min = 1, .also = kInfinity}; }
Constraint axis_or_rest() { return {.min = 1, .max = kMaxMeshAxis, .also = -1}; }
Constraint two_betas() { return {.min = 0, .max = 1, .below_max = true, .length = 2}; }
Constraint three_numbers() { return {.length = 3}; }
Constraint an_optimizer() {
  Constraint constraint = one_of({"adamw", "adam", "sgd", "lion", "muon"});
  constraint.because =
      "adafactor is not among them: it keeps sums of rows and columns of whole matrices, which no shard has; "
      "muon works with whole matrices, and lion keeps half of adamw's state";
  return constraint;
}
Constraint a_preset() {
  std::vector<std::string> names = {""};
  for (const ModelPreset& preset : model_presets()) names.push_back(preset.name);
  return one_of(std::move(names));
}
Constraint float_type() { return one_of({"float32", "bfloat16", "float16"}); }

Constraint strictly_between(double min, double max) {
  return {.min = min, .max = max, .above_min = true, .below_max = true};
}

std::vector<Key> make_keys() {
  return {
      {KEY(run, name), "name of the run in logs", non_empty(), {}},
      {KEY(run, output_dir), "folder of checkpoints, metrics and the resolved config", non_empty(), {}},
      {KEY(run, seed), "of initial weights and sample order", at_least(0), {}},

      {KEY(model, preset), "a well-known model, for the keys of [model] that are not given", a_preset(), {}},
      {KEY(model, architecture), "family of the model", one_of({"llama", "gpt2"}), {}},
      {KEY(model, vocab_size), "tokens of the vocabulary", between(1, 10'000'000), {}},
      {KEY(model, hidden_size), "width of the hidden states", between(1, kMaxWidth), {}},
      {KEY(model, intermediate_size), "width inside the feed-forward", between(1, kMaxWidth), {}},
      {KEY(model, num_hidden_layers), "blocks", between(1, 10'000), {}},
      {KEY(model, num_attention_heads), "query heads of a block", between(1, kMaxHeads), {}},
      {KEY(model, num_key_value_heads), "llama: fewer than query heads is grouped-query attention",
       between(1, kMaxHeads), "num_attention_heads"},
      {KEY(model, head_dim),
       "llama: width of a head; 0: hidden_size / num_attention_heads",
       between(0, kMaxWidth),
       {}},
      {KEY(model, attention_bias), "llama: query, key, value and output projections have biases", {}, {}},
      {KEY(model, qkv_bias), "llama: query, key and value projections have biases (Qwen2)", {}, {}},
      {KEY(model, mlp_bias), "llama: the feed-forward has biases", {}, {}},
      {KEY(model, sliding_window),
       "llama: tokens that Mistral's attention reaches back; sequences may not be longer; 0: any",
       between(0, kMaxPositions),
       {}},
      {KEY(model, max_position_embeddings),
       "longest sequence of the model, in tokens",
       between(1, kMaxPositions),
       {}},
      {KEY(model, rope_theta), "llama: base of the rotary embedding", above(0), {}},
      {KEY(model, rope_type),
       "llama: how positions beyond the first training's length are reached",
       one_of({"default", "linear", "llama3"}),
       {}},
      {KEY(model, rope_factor), "linear, llama3: the longer length over the first", above(0), {}},
      {KEY(model, rope_low_freq_factor),
       "llama3: turns in the first length below which all is slowed",
       above(0),
       {}},
      {KEY(model, rope_high_freq_factor), "llama3: turns above which nothing is", above(0), {}},
      {KEY(model, rope_original_length),
       "llama3: the first length, in tokens",
       between(1, kMaxPositions),
       {}},
      {KEY(model, rms_norm_eps), "llama: epsilon of RMSNorm", above(0), {}},
      {KEY(model, layer_norm_epsilon), "gpt2: epsilon of LayerNorm", above(0), {}},
      {KEY(model, initializer_range), "standard deviation of the initial weights", at_least(0), {}},
      {KEY(model, embedding_dropout), "dropout of the embeddings while training", from_up_to_below(0, 1), {}},
      {KEY(model, attention_dropout),
       "dropout of the attention's weights while training; they exist as a whole then",
       from_up_to_below(0, 1),
       {}},
      {KEY(model, hidden_dropout),
       "dropout of what attention and feed-forward add to their input while training",
       from_up_to_below(0, 1),
       {}},
      {KEY(model, tie_word_embeddings), "the head uses the embedding's weight", {}, {}},
      {KEY(model, init_from),
       "a .safetensors file, a folder of them, or a checkpoint; empty: random weights",
       {},
       {}},
      {KEY(model, init_broadcast),
       "process 0 alone reads (or makes) the first weights and sends them on: for slow shared file systems",
       {},
       {}},

      {KEY(data, train), "token files, or patterns of them with *, read as if joined", non_empty(), {}},
      {KEY(data, train_weights),
       "one number above 0 for each entry of train, which are sets of their own then: shares of their "
       "samples",
       above(0),
       {}},
      {KEY(data, validation), "token files, or patterns of them; none: no validation", {}, {}},
      {KEY(data, tokenizer),
       "what the tokens are, for whoever turns them into text again: bytes, or the path that fsdp-data was "
       "given",
       non_empty(),
       {}},
      {KEY(data, sequence_length), "tokens of a sample", between(1, 1'000'000), {}},
      {KEY(data, micro_batch_size), "samples of a rank in a micro-step", between(1, 100'000), {}},
      {KEY(data, documents),
       "mask: attention stays inside documents; split: a sample is of one document, and the rest of its row "
       "does not count; join: as if all were one",
       one_of({"join", "mask", "split"}),
       {}},
      {KEY(data, document_separator),
       "token that ends a document, in files without an index of them; -1: the tokenizer's end of text",
       between(-1, 4294967295.0),
       {}},
      {KEY(data, prefetch_batches),
       "batches that a thread makes ahead of the step; 0: none",
       between(0, 1000),
       {}},
      {KEY(data, shuffle), "visit the samples in an order that depends on run.seed", {}, {}},

      {KEY(training, steps), "optimizer steps of the whole run", between(1, 1'000'000'000), {}},
      {KEY(training, epochs),
       "in place of steps: passes over the training data, at whatever number of processes; 0: steps count",
       between(0, 1'000'000),
       {}},
      {KEY(training, gradient_accumulation_steps), "micro-steps of a step", between(1, 1'000'000), {}},
      {KEY(training, batch_warmup_steps),
       "so many steps the micro-steps a step rise from 1 to gradient_accumulation_steps; 0: all have as many",
       at_least(0),
       {}},
      {KEY(training, label_smoothing),
       "share of a target's probability that the loss spreads evenly over the vocabulary",
       from_up_to_below(0, 1),
       {}},
      {KEY(training, z_loss),
       "weight of the squared log of the sum of exp(logits) in the loss; 1e-4 is usual; 0: none",
       at_least(0),
       {}},
      {KEY(training, max_grad_norm), "clip gradients to this norm; 0: no clipping", at_least(0), {}},
      {KEY(training, norm_type),
       "p of the gradient norm; inf: the largest magnitude",
       at_least_one_or_inf(),
       {}},
      {KEY(training, device),
       "what a rank computes on; auto: a GPU where the program and the machine have them, else the CPU",
       one_of({"auto", "cpu", "cuda"}),
       {}},
      {KEY(training, float32_matmul_precision),
       "of float32 matrix products on GPUs: highest, or high, which is TF32: factors of 10 bits, several "
       "times "
       "as fast",
       one_of({"highest", "high"}),
       {}},
      {KEY(training, fused_kernels),
       "use kernels that do in one pass over memory what is composed of many operations otherwise",
       {},
       {}},
      {KEY(training, matmul),
       "library of fp32 matrix products on the CPU; auto: oneDNN with AVX-512 on CPUs that are not Intel's",
       one_of({"auto", "mkl", "onednn"}),
       {}},
      {KEY(training, float8),
       "tensorwise: linear layers multiply in 8-bit floating point, scaled tensor by tensor, on GPUs from "
       "compute capability 8.9; on the CPU for tests only",
       one_of({"none", "tensorwise"}),
       {}},
      {KEY(training, float8_exclude),
       "patterns (* and ?) of weights of linear layers that do not: \"*.layers.0.*\"",
       {},
       {}},
      {KEY(training, no_sync),
       "add gradients of micro-steps up unsharded, reduce after the last: less traffic, more memory",
       {},
       {}},
      {KEY(training, skip_nonfinite),
       "skip the update of a step whose loss or gradient norm is not finite; off: such a step ends the run",
       {},
       {}},
      {KEY(training, skip_zscore),
       "skip the update of a step whose loss or gradient norm lies so many standard deviations above the "
       "mean; "
       "0: none",
       at_least(0),
       {}},
      {KEY(training, skip_window), "of skip_zscore: the last so many updates", between(2, 100'000), {}},
      {KEY(training, max_skipped_steps),
       "so many skipped steps in a row are borne; one more ends the run",
       at_least(0),
       {}},

      {KEY(evaluation, interval_steps),
       "validate every so many steps; 0: only after the last",
       at_least(0),
       {}},
      {KEY(evaluation, max_samples), "validation samples at most; 0: all", at_least(0), {}},
      {KEY(evaluation, patience),
       "end the run after so many validations in a row without a better loss; 0: never",
       at_least(0),
       {}},
      {KEY(evaluation, min_delta), "a better loss is lower by more than this", at_least(0), {}},

      {KEY(optimizer, name),
       "the optimizer; adam: weight decay in the gradient; lion: the sign of its momentum; muon: orthogonal "
       "steps of whole matrices, adamw for the rest",
       an_optimizer(),
       {}},
      {KEY(optimizer, lr), "learning rate after warm-up", at_least(0), {}},
      {KEY(optimizer, betas), "adamw, adam, lion: decay of the two averages", two_betas(), {}},
      {KEY(optimizer, eps), "adamw, adam: added to the denominator", above(0), {}},
      {KEY(optimizer, momentum), "sgd, muon: momentum", from_up_to_below(0, 1), {}},
      {KEY(optimizer, dampening), "sgd: share of a gradient that momentum leaves out", between(0, 1), {}},
      {KEY(optimizer, nesterov), "sgd, muon: Nesterov's momentum", {}, {}},
      {KEY(optimizer, weight_decay),
       "weight decay (decoupled from the gradient but with adam and sgd)",
       at_least(0),
       {}},
      {KEY(optimizer, no_decay), "patterns (* and ?) of parameters without weight decay", {}, {}},
      {KEY(optimizer, groups),
       "parameters with a rate (lr, or lr_scale times the optimizer's) or weight_decay of their own, by the "
       "first pattern that matches: [[optimizer.groups]]",
       {},
       {}},
      {KEY(optimizer, adamw_parameters), "muon: patterns of matrices that adamw updates", {}, {}},
      {KEY(optimizer, ns_steps), "muon: steps of the Newton-Schulz iteration", between(1, 99), {}},
      {KEY(optimizer, ns_coefficients), "muon: coefficients of that iteration", three_numbers(), {}},
      {KEY(optimizer, adjust_lr_fn),
       "muon: how the rate of a matrix follows from its shape; match_rms_adamw: steps as long as adamw's",
       one_of({"original", "match_rms_adamw"}),
       {}},

      {KEY(optimizer, ema_decay),
       "keep an exponential moving average of the weights with this decay, for fsdp-ckpt --ema; 0: none",
       from_up_to_below(0, 1),
       {}},

      {KEY(lr_scheduler, name),
       "course of the learning rate",
       one_of({"constant", "cosine", "linear", "wsd", "inverse_sqrt", "polynomial", "tri_stage"}),
       {}},
      {KEY(lr_scheduler, warmup_steps), "steps of linear warm-up", at_least(0), {}},
      {KEY(lr_scheduler, hold_steps), "tri_stage: steps of the whole rate after warm-up", at_least(0), {}},
      {KEY(lr_scheduler, decay_steps),
       "wsd: steps of the final decay; 0: a tenth of the run; tri_stage: of the decay; 0: the rest",
       at_least(0),
       {}},
      {KEY(lr_scheduler, min_lr_ratio),
       "floor of the rate after warm-up, as a share of lr",
       between(0, 1),
       {}},
      {KEY(lr_scheduler, power), "polynomial: the exponent", above(0), {}},

      {KEY(fsdp, strategy),
       "full_shard: parameters, gradients, optimizer; shard_grad_op: parameters stay gathered; hybrid_shard, "
       "hybrid_shard_zero2: the same over mesh.data, replicas over mesh.dcn; no_shard: DDP",
       one_of({"full_shard", "shard_grad_op", "hybrid_shard", "hybrid_shard_zero2", "no_shard"}),
       {}},
      {KEY(fsdp, layout),
       "how a unit's parameters are cut: flat: as one, evenly; per_parameter: each on one dimension",
       one_of({"flat", "per_parameter"}),
       {}},
      {KEY(fsdp, shard_dimension),
       "per_parameter: the dimension that is cut: the largest, of equal ones the first; or the first",
       one_of({"largest", "first"}),
       {}},
      {KEY(fsdp, shard_1d_parameters),
       "per_parameter: cut biases and weights of norms too; off: whole on every rank, gradients all-reduced",
       {},
       {}},
      {KEY(fsdp, min_num_params),
       "a stage with at least so many parameters of its own becomes a unit",
       at_least(0),
       {}},
      {KEY(fsdp, wrap_stages), "stage types that become units whatever their size", {}, {}},
      {KEY(fsdp, exclude_stages), "stage types that stay in the unit around them", {}, {}},
      {KEY(fsdp, leaf_stages), "stage types inside which nothing becomes a unit", {}, {}},
      {KEY(fsdp, replicated_parameters),
       "patterns (* and ?) of parameters that stay whole on every rank; their gradients are all-reduced",
       {},
       {}},
      {KEY(fsdp, replica_check_interval),
       "compare the replicas every so many steps; 0: only before the first",
       at_least(0),
       {}},
      {KEY(fsdp, reshard_after_forward),
       "full_shard, hybrid_shard: free gathered parameters between forward and backward",
       {},
       {}},
      {KEY(fsdp, keep_after_forward), "patterns (* and ?) of units that are not freed there", {}, {}},
      {KEY(fsdp, reshard_root_after_forward), "free the root unit there too", {}, {}},
      {KEY(fsdp, reshard_last_after_forward),
       "free the unit there too that forward uses last and backward first",
       {},
       {}},
      {KEY(fsdp, forward_prefetch),
       "gather the next unit beside this one's compute, by the order of the last forward; explicit: one "
       "order, "
       "checked over ranks",
       one_of({"none", "implicit", "explicit"}),
       {}},
      {KEY(fsdp, backward_prefetch),
       "when backward gathers the next unit: before (pre) or after (post) this one's reduction, or on use",
       one_of({"none", "post", "pre"}),
       {}},
      {KEY(fsdp, limit_all_gathers), "gather at most one unit ahead of the one in use", {}, {}},
      {KEY(fsdp, cpu_offload), "keep master weights and optimizer state in host memory", {}, {}},
      {KEY(fsdp, move_grads_to_cpu), "with cpu_offload: the shards' gradients too", {}, {}},
      {KEY(fsdp, gradient_predivide_factor),
       "divides gradients before the sum over ranks; 0: 1, or for float16 about the square root of the ranks",
       at_least(0),
       {}},

      {KEY(mixed_precision, param_dtype), "type of gathered parameters and of compute", float_type(), {}},
      {KEY(mixed_precision, reduce_dtype),
       "type in which gradients add up and are reduced",
       float_type(),
       {}},
      {KEY(mixed_precision, buffer_dtype), "type of the model's buffers", float_type(), {}},
      {KEY(mixed_precision, cast_forward_inputs), "cast the inputs of units to param_dtype", {}, {}},
      {KEY(mixed_precision, keep_low_precision_grads),
       "the shard's gradient stays in reduce_dtype until the optimizer uses it",
       {},
       {}},
      {KEY(mixed_precision, keep_float32),
       "patterns (* and ?) of parameters that stay float32: \"*norm*\"",
       {},
       {}},

      {KEY(loss_scaler, enabled),
       "scale the loss against float16's range; auto: when a float16 type is in use",
       one_of({"auto", "true", "false"}),
       {}},
      {KEY(loss_scaler, init_scale), "the first scale", above(0), {}},
      {KEY(loss_scaler, growth_factor), "after growth_interval steps without overflow", above(1), {}},
      {KEY(loss_scaler, backoff_factor), "after an overflow", strictly_between(0, 1), {}},
      {KEY(loss_scaler, growth_interval), "steps without overflow before the scale grows", at_least(1), {}},
      {KEY(loss_scaler, min_scale), "an overflow at this scale ends the run", above(0), {}},

      {KEY(activation_checkpointing, mode),
       "what backward recomputes; full: all of a stage but its input",
       one_of({"none", "full"}),
       {}},
      {KEY(activation_checkpointing, stage_types), "types of the stages that are recomputed", {}, {}},

      {KEY(mesh, dcn),
       "groups of processes over the slow network: replicas with fsdp.strategy hybrid_shard; -1: the rest",
       axis_or_rest(),
       {}},
      {KEY(mesh, data),
       "processes of such a group; -1: all processes that the other axes leave",
       axis_or_rest(),
       {}},
      {KEY(mesh, model),
       "parts of a tensor-parallel model",
       only("1", "this version has no tensor parallelism"),
       {}},

      {KEY(comm, backend),
       "how processes talk: shm, through memory that those of one host share; gloo, over TCP; hierarchical, "
       "shm "
       "inside each host and gloo between hosts; auto: shm on one host, hierarchical on several with the "
       "same "
       "number of processes, 2 or more, else gloo; what is on GPUs goes over NCCL with auto, and with nccl, "
       "which "
       "is "
       "auto for the rest; with the others through host memory",
       Constraint{.choices = {"auto", "shm", "gloo", "hierarchical", "nccl"},
                  .because = "this version has no other backend"},
       {}},
      {KEY(comm, timeout_seconds),
       "patience of a collective and of the rendezvous",
       Constraint{.min = 0, .max = 1e9, .above_min = true},
       {}},

      {KEY(checkpoint, interval_steps), "save every so many steps; 0: only at the end", at_least(0), {}},
      {KEY(checkpoint, save_at_end), "save after the last step", {}, {}},
      {KEY(checkpoint, keep_last), "delete all but so many checkpoints; 0: keep all", at_least(0), {}},
      {KEY(checkpoint, keep_every),
       "keep each checkpoint besides whose step is a multiple of it; 0: none",
       at_least(0),
       {}},
      {KEY(checkpoint, keep_best),
       "save after each validation with the lowest loss so far, keep that checkpoint and mark it by the link "
       "\"best\"",
       {},
       {}},
      {KEY(checkpoint, kind),
       "sharded: a file a process; full: one file with whole tensors, through rank 0",
       one_of({"sharded", "full"}),
       {}},
      {KEY(checkpoint, asynchronous),
       "copy the shards to host memory and write them while training goes on",
       {},
       {}},
      {KEY(checkpoint, resume),
       "auto (the newest, else start anew), never, latest, or a path",
       non_empty(),
       {}},
      {KEY(checkpoint, init_from),
       "a checkpoint of another run; where nothing is resumed, training starts at step 0 from its weights",
       {},
       {}},
      {KEY(checkpoint, init_only),
       "patterns (* and ?) of the parameters that init_from gives; none: all",
       {},
       {}},
      {KEY(checkpoint, init_missing),
       "patterns (* and ?) of the parameters that init_from may lack; they start as without it",
       {},
       {}},

      {KEY(logging, interval_steps), "log every so many steps", at_least(1), {}},
      {KEY(logging, trace_communication),
       "write a line a collective and a buffer to trace.rank<R>.jsonl",
       {},
       {}},
      {KEY(logging, peak_tflops),
       "TFLOP/s of matrix products that a process could reach; MFU is the share of it. 0: measured at the "
       "start",
       at_least(0),
       {}},
      {KEY(logging, csv), "write metrics.csv beside metrics.jsonl: the same numbers as a table", {}, {}},
      {KEY(logging, tensorboard),
       "write event files for TensorBoard into tensorboard/ of the run's folder",
       {},
       {}},
      {KEY(logging, profile_steps),
       "steps that libtorch's profiler records, each as profile.rank<R>.step<N>.json for Perfetto",
       at_least(1),
       {}},
      {KEY(logging, nvtx), "on a GPU: name operations and units for Nsight Systems by NVTX ranges", {}, {}},
      {KEY(logging, memory_snapshot),
       "on a GPU: remember who asked for memory, and write memory.rank<R>.pickle when it is full",
       {},
       {}},
      {KEY(logging, sample_every),
       "log a text of the model's every so many steps; 0: never",
       at_least(0),
       {}},
      {KEY(logging, sample_prompt),
       "what these texts go on from, in data.tokenizer's tokens; empty: a new text",
       {},
       {}},
      {KEY(logging, sample_tokens), "tokens of such a text", at_least(1), {}},
  };
}

#undef KEY

}  // namespace

const std::vector<Key>& all_keys() {
  static const std::vector<Key> keys = make_keys();
  return keys;
}

std::vector<std::string> section_names() {
  std::vector<std::string> names;
  for (const Key& key : all_keys()) {
    if (names.empty() || names.back() != key.section) names.push_back(key.section);
  }
  return names;
}

const Key* find_key(std::string_view section, std::string_view name) {
  const std::vector<Key>& keys = all_keys();
  auto found = std::find_if(keys.begin(), keys.end(),
                            [&](const Key& key) { return key.section == section && key.name == name; });
  return found == keys.end() ? nullptr : &*found;
}

Value value_of(const Key& key, Config& config) {
  return std::visit([&config](auto field) { return Value(field(config)); }, key.field);
}

void set_value(const Key& key, Config& config, const Value& value) {
  std::visit(
      [&](auto field) {
        using Held = std::remove_reference_t<decltype(field(config))>;
        field(config) = std::get<Held>(value);
      },
      key.field);
}

}  // namespace fsdp::config
