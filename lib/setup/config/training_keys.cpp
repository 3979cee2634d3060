// How it is trained: [training], [evaluation], [optimizer] and [lr_scheduler].

#include <algorithm>
#include <limits>

#include "model/families/architectures.h"
#include "model/families/objectives.h"
#include "setup/config/key_tables.h"
#include "state/groups/learning_rate.h"
#include "state/groups/parameter_groups.h"

namespace fsdp::config {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

Constraint at_least_one_or(double also) { return {.min = 1, .also = also}; }
Constraint two_betas() { return {.min = 0, .max = 1, .below_max = true, .length = 2}; }
Constraint three_numbers() { return {.length = 3}; }
Constraint two_numbers() { return {.min = 0, .length = 2}; }

Condition learns_language() { return is("training.objective", {nn::kLanguageModel}); }

/// Whether the objective is one of these, or one of a plug-in, which may read any option.
Condition objective_is(const std::vector<std::string>& names) {
  Condition condition = is("training.objective", names);
  condition.holds = [names](Config& config) {
    const nn::Objective* objective = nn::objectives().find(config.training.objective);
    return std::ranges::find(names, config.training.objective) != names.end() ||
           (objective != nullptr && objective->loss);
  };
  return condition;
}

/// Whether the objective is of preferences and has this property.
Condition objective_has(const std::string& words, bool (*property)(const nn::Objective&)) {
  return {.words = words, .keys = {"training.objective"}, .holds = [property](Config& config) {
            const nn::Objective* objective = nn::objectives().find(config.training.objective);
            return objective != nullptr && property(*objective);
          }};
}

Condition has_reference() {
  return objective_has("training.objective has a reference",
                       [](const nn::Objective& objective) { return objective.has_reference; });
}

Condition learns_from_teacher() {
  return objective_has("training.objective is distill",
                       [](const nn::Objective& objective) { return objective.has_teacher; });
}

Condition has_local_steps() { return is_above_0("training.local_steps"); }

/// A step may have more than one.
Condition several_micro_batches() {
  return is_not("training.gradient_accumulation_steps", "1") || is_above_0("training.global_batch_size");
}

}  // namespace

Condition validates_regularly() {
  return is_given("data.validation") && is_above_0("evaluation.interval_steps");
}

std::vector<Key> training_keys() {
  return {
      {KEY(training, steps), "optimizer steps of the whole run", between(1, 1'000'000'000)},
      {KEY(training, epochs),
       "instead of steps: passes over the training data, whatever the number of processes; 0: use steps",
       between(0, 1'000'000)},
      {KEY(training, stop_after_hours),
       "end the run with the step in which it has trained for this many hours, over all its starts; it saves "
       "and exits with 0; 0: no limit",
       at_least(0)},
      {KEY(training, global_batch_size),
       "samples per step over all ranks, which determine gradient_accumulation_steps; 0: use that key",
       between(0, 1'000'000'000)},
      {KEY(training, gradient_accumulation_steps),
       "micro-batches per step; 0 (the default beside global_batch_size): derived from global_batch_size",
       between(0, 1'000'000)},
      {KEY(training, local_steps),
       "steps that each replica of mesh.dcn takes alone before all combine their weights (DiLoCo), so that the slow "
       "network is used once in so many steps; 0: gradients are averaged over replicas in each step",
       between(0, 1'000'000'000)},
      {KEY(training, batch_warmup_steps),
       "steps over which the micro-batches per step grow from 1 to gradient_accumulation_steps; 0: no growth",
       at_least(0), several_micro_batches()},
      {KEY(training, objective),
       "what training compares: language_model: texts, by training.loss; dpo, robust, hinge, ipo, exo_pair, apo_zero, "
       "apo_down, orpo, simpo, cpo: a chosen and a rejected answer; kto: answers with labels; distill: texts, by the "
       "distributions of a teacher",
       one_of_registered(nn::objectives())},
      {KEY(training, loss), "what training minimizes; validation always reports the cross entropy",
       one_of_registered(nn::losses()), learns_language()},
      {KEY(training, label_smoothing),
       "share of a target's probability that the loss spreads evenly over the vocabulary",
       from_up_to_below(0, 1), is("training.loss", {nn::kCrossEntropy}) && learns_language()},
      {KEY(training, z_loss),
       "weight of the squared log of the sum of exp(logits) in the loss; 1e-4 is usual; 0: none", at_least(0),
       is("training.loss", {nn::kCrossEntropy}) && learns_language()},
      {KEY(training, max_grad_norm), "clip gradients to this norm; 0: no clipping", at_least(0)},
      {KEY(training, norm_type), "p of the gradient norm; inf: the largest magnitude",
       at_least_one_or(kInfinity)},
      {KEY(training, clip_grad_value),
       "instead of max_grad_norm: clip each element of the gradient to [-value, value]; 0: no clipping",
       at_least(0)},
      {KEY(training, device),
       "device that a rank computes on; auto: a GPU if the program and the machine support it, else the CPU"},
      {KEY(training, float32_matmul_precision),
       "precision of float32 matrix products: highest, or high: TF32 on GPUs (factors of 10 "
       "bits, several times as fast), factors of 16 bits on CPUs with matrix units (Intel "
       "AMX, half the work)"},
      {KEY(training, fused_kernels), "use kernels that fuse several operations into one pass over memory"},
      {KEY(training, logits_mib),
       "MiB of logits in a GPU's memory at a time: if those of a micro-batch fit, the gradient of the head's "
       "weight is one product, added in fp32; 0: those of a micro-batch if the planned memory of the step stays "
       "below three quarters of the GPU's, otherwise 512",
       between(0, 1 << 20), is_not("training.device", "cpu")},
      {KEY(training, matmul),
       "library for matrix products on the CPU: MKL, oneDNN, or amx: the matrix units of the cores (Intel AMX), "
       "with fp32 split into three bf16 parts; auto: the last of these that is available",
       is_not("training.device", "cuda")},
      {KEY(training, product_trials),
       "in the first step, compute each 16-bit product on a GPU by several of cublasLt's algorithms, also together "
       "with what follows it, and use the fastest from then on, on all ranks those of the first; products.json in "
       "the output folder keeps the choices; with training.deterministic only those of that file are used",
       is_not("training.device", "cpu")},
      {KEY(training, float8),
       "linear layers multiply in 8-bit floating point, scaled tensor by tensor or, with rowwise, row by row: slower "
       "and nearer to bf16; on GPUs from compute capability 8.9; on the CPU for tests only"},
      {KEY(training, float8_exclude),
       "patterns (* and ?) of weights whose linear layers do not use float8: \"*.layers.0.*\"",
       is_not("training.float8", "none")},
      {KEY(training, cuda_graphs),
       "capture the forward and backward of each block in CUDA graphs and replay them: for models whose "
       "kernels are shorter than their launches; activations keep their memory between steps",
       is_not("training.device", "cpu")},
      {KEY(training, deterministic),
       "use only kernels whose results are the same in every run, like torch.use_deterministic_algorithms(True): on "
       "GPUs attention's backward is slower, and an operation of a plug-in without such a kernel ends the run; on "
       "the CPU built-in models compute the same either way"},
      {KEY(training, reproducible),
       "run: a run on as many ranks and threads repeats all bits; world_size: weights, optimizer state and metrics do "
       "not depend on the number of ranks, of threads and of samples in a micro-batch (CPU only)"},
      {KEY(training, no_sync),
       "accumulate gradients of micro-batches unsharded and reduce after the last: less traffic, more "
       "memory",
       several_micro_batches()},
      {KEY(training, skip_nonfinite),
       "skip the update of a step whose loss or gradient norm is not finite; off: such a step ends the run"},
      {KEY(training, skip_zscore),
       "skip the update of a step whose loss or gradient norm is this many standard deviations above the "
       "mean; 0: off",
       at_least(0)},
      {KEY(training, skip_window), "number of past updates from which skip_zscore takes mean and deviation",
       between(2, 100'000), is_above_0("training.skip_zscore")},
      {KEY(training, max_skipped_steps),
       "consecutive skipped steps that are tolerated; one more ends the run", at_least(0),
       is("training.skip_nonfinite", {"true"}) || is_above_0("training.skip_zscore")},
      {KEY(training, slow_rank_factor),
       "name a rank that needs at least this many times as long as the others for its own part of the steps, "
       "waits for them left out; compared at logged steps, on CPUs; 0: off",
       at_least_one_or(0), is_not("training.device", "cuda")},
      {KEY(training, slow_rank_steps), "consecutive steps after which a slow rank is named, or has recovered",
       between(1, 1'000'000), is_not("training.device", "cuda") && is_above_0("training.slow_rank_factor")},

      {KEY(preference, beta), "strength of the pull towards the reference, or scale of the scores", above(0),
       objective_has(
           "training.objective is of preferences",
           [](const nn::Objective& objective) { return objective.rows != nn::ObjectiveRows::kTexts; })},
      {KEY(preference, label_smoothing),
       "share of pairs that are assumed to be labelled the wrong way round",
       {.min = 0, .max = 0.5, .below_max = true},
       objective_is({"dpo", "robust", "exo_pair", "simpo", "cpo"})},
      {KEY(preference, length_normalised), "compare means over the tokens of an answer instead of sums",
       objective_is({"dpo"})},
      {KEY(preference, simpo_gamma), "margin by which the chosen answer's score is to exceed the other's",
       at_least(0), objective_is({"simpo"})},
      {KEY(preference, cpo_alpha), "weight of the cross entropy of chosen answers", at_least(0),
       objective_is({"cpo"})},
      {KEY(preference, desirable_weight), "weight of the losses of desirable answers", above(0),
       objective_is({"kto"})},
      {KEY(preference, undesirable_weight), "weight of the losses of undesirable answers", above(0),
       objective_is({"kto"})},
      {KEY(preference, exchanged_rows),
       "rows of the data, one after another, among which answers are exchanged to estimate the divergence from the "
       "reference; 0: all",
       at_least(0), objective_is({"kto"})},
      {KEY(preference, reference),
       "what answers are compared with; base: the model without its adapters; model: a second one, frozen and "
       "sharded; stored: files that fsdp-train reference-log-probs has written beside the data; auto: base with "
       "lora.rank and without reference_model, else model",
       {},
       has_reference()},
      {KEY(preference, reference_model),
       "weights of the second model; not given: those of model.init_from",
       {},
       has_reference() && is_not("preference.reference", "base") && is_not("preference.reference", "stored")},

      {KEY(distillation, teacher),
       "where the teacher's distributions are from; model: a second model, frozen and sharded; stored: files that "
       "fsdp-train reference-log-probs has written beside the data",
       {},
       learns_from_teacher()},
      {KEY(distillation, teacher_model),
       "weights of the teacher, in any form that model.init_from accepts",
       {},
       learns_from_teacher()},
      {KEY(distillation, beta),
       "divergence of the model from the teacher; 0: forward KL; 1: reverse KL; between: generalized Jensen-Shannon",
       between(0, 1), learns_from_teacher()},
      {KEY(distillation, temperature), "both models' logits are divided by it", above(0),
       learns_from_teacher()},
      {KEY(distillation, alpha),
       "weight of the divergence in the loss; that of the cross entropy is 1 - alpha", between(0, 1),
       learns_from_teacher()},
      {KEY(distillation, top_k),
       "compare the teacher's likeliest tokens, and all others as one; 0: compare all tokens", at_least(0),
       learns_from_teacher()},

      {KEY(evaluation, interval_steps), "steps between validations; 0: only after the last step", at_least(0),
       is_given("data.validation") || is_given("evaluation.tasks")},
      {KEY(evaluation, max_samples), "maximum number of validation samples; 0: all", at_least(0),
       is_given("data.validation")},
      {KEY(evaluation, accuracy),
       "also report the share of tokens that the model predicts as most likely; keeps the logits of a whole batch "
       "in memory",
       is_given("data.validation")},
      {KEY(evaluation, best_metric),
       "metric that decides which validation is the best, for checkpoint.keep_best and patience: one of "
       "metrics.jsonl, of the validation or of the validated step; lower is better, except for accuracies and margins",
       is("checkpoint.keep_best", {"true"}) || is_above_0("evaluation.patience")},
      {KEY(evaluation, patience),
       "end the run after this many consecutive validations that are not better; 0: never", at_least(0),
       validates_regularly()},
      {KEY(evaluation, min_delta), "a better validation is better by more than this in best_metric",
       at_least(0), validates_regularly()},
      {KEY(evaluation, tasks),
       "files of questions, one a line, that the model answers when it validates: multiple choice, texts, or "
       "exact answers, with lm-evaluation-harness's metrics"},

      {KEY(optimizer, name),
       "the optimizer; adam, adamax, adagrad, adadelta: as in torch.optim, with weight decay in the "
       "gradient; lion: the sign of its momentum; lamb: Adam's step, scaled to each tensor's norm; adafactor: "
       "averages of rows and columns instead of elements; muon: orthogonal steps of whole matrices, adamw for "
       "the rest",
       one_of_registered(optim::optimizer_traits())},
      {KEY(optimizer, lr), "learning rate after warm-up", at_least(0)},
      {KEY(optimizer, betas), "decay of the two averages", two_betas(), optimizer_reads("betas")},
      {OPEN_KEY(optimizer, eps, optim::default_eps(c.optimizer.name)),
       "added to the denominator; not given: 1e-10 with adagrad, 1e-6 with adadelta and lamb, 1e-8 with the "
       "others",
       above(0),
       optimizer_reads("eps"),
       {},
       "name"},
      {KEY(optimizer, rho), "decay of the averages", between(0, 1), optimizer_reads("rho")},
      {KEY(optimizer, momentum), "momentum", from_up_to_below(0, 1), optimizer_reads("momentum")},
      {KEY(optimizer, dampening), "share of the gradient that does not enter the momentum", between(0, 1),
       optimizer_reads("dampening") && is_above_0("optimizer.momentum")},
      {KEY(optimizer, nesterov), "Nesterov's momentum",
       optimizer_reads("nesterov") && is_above_0("optimizer.momentum") && is("optimizer.dampening", {"0.0"})},
      {OPEN_KEY(optimizer, weight_decay, optim::default_weight_decay(c.optimizer.name)),
       "weight decay (decoupled from the gradient in adamw, lion, lamb and muon); not given: 0.1 with adamw "
       "and muon, 0.01 with lamb, 0 with the others",
       at_least(0),
       {},
       {},
       "name"},
      {KEY(optimizer, no_decay), "patterns (* and ?) of parameters without weight decay",
       is_above_0("optimizer.weight_decay") || is_given("optimizer.groups")},
      {KEY(optimizer, groups),
       "parameters with their own rate (lr, or lr_scale times the optimizer's) or weight_decay; the first "
       "matching pattern applies: [[optimizer.groups]]"},
      {KEY(optimizer, adamw_parameters), "patterns of matrices that adamw updates",
       optimizer_reads("adamw_parameters")},
      {KEY(optimizer, ns_steps), "steps of the Newton-Schulz iteration", between(1, 99),
       optimizer_reads("ns_steps")},
      {KEY(optimizer, ns_coefficients), "coefficients of that iteration", three_numbers(),
       optimizer_reads("ns_coefficients")},
      {KEY(optimizer, adjust_lr_fn),
       "how the learning rate of a matrix depends on its shape; match_rms_adamw: updates as large as adamw's",
       optimizer_reads("adjust_lr_fn")},
      {KEY(optimizer, relative_step), "the rate is at most 1 / sqrt(step)", optimizer_reads("relative_step")},
      {KEY(optimizer, scale_parameter), "the rate is relative to the root mean square of a tensor's values",
       optimizer_reads("scale_parameter")},
      {KEY(optimizer, clip_threshold),
       "largest root mean square of a tensor's step, before it is multiplied by the rate", above(0),
       optimizer_reads("clip_threshold")},
      {KEY(optimizer, decay_rate), "averages of squares decay by 1 - step to this power", between(-1, 0),
       optimizer_reads("decay_rate")},
      {KEY(optimizer, beta1), "decay of an average of steps, which costs a state per element; 0: none",
       from_up_to_below(0, 1), optimizer_reads("beta1")},
      {KEY(optimizer, adafactor_eps),
       "added to squares of gradients; least root mean square of a tensor for scale_parameter", two_numbers(),
       optimizer_reads("adafactor_eps")},
      {KEY(optimizer, state_dtype),
       "type of the optimizer's states; bfloat16: half of their memory, rounded stochastically by run.seed; int8: a "
       "quarter, in blocks of 256 with a scale, but for vectors, embeddings and matrices of less than 4096 elements",
       optimizer_reads("state_dtype")},
      {KEY(optimizer, offload),
       "stream: the states are in host memory, and a GPU updates them piece by piece, beside the copies; with "
       "fsdp.cpu_offload, the weights too",
       optimizer_reads("offload")},
      {KEY(optimizer, ema_decay),
       "keep an exponential moving average of the weights with this decay, for fsdp-ckpt --ema; 0: none",
       from_up_to_below(0, 1)},

      {KEY(lr_scheduler, name), "shape of the learning-rate schedule",
       one_of_registered(optim::schedule_shapes())},
      {KEY(lr_scheduler, warmup_steps), "steps of linear warm-up", at_least(0)},
      {KEY(lr_scheduler, warmup_ratio),
       "instead of warmup_steps: the warm-up's share of all steps, such as 0.03; 0: use warmup_steps",
       from_up_to_below(0, 1)},
      {KEY(lr_scheduler, hold_steps), "steps at the full rate after warm-up", at_least(0),
       schedule_is({"tri_stage"})},
      {KEY(lr_scheduler, decay_steps),
       "wsd: steps of the final decay, 0: a tenth of the run; tri_stage: steps of the decay, 0: the rest",
       at_least(0), schedule_is({"wsd", "tri_stage"})},
      {KEY(lr_scheduler, min_lr_ratio), "floor of the rate after warm-up, as a share of lr", between(0, 1),
       is_not("lr_scheduler.name", "constant")},
      {KEY(lr_scheduler, power), "the exponent", above(0), schedule_is({"polynomial"})},

      {KEY(outer_optimizer, name),
       "how the weights of all replicas follow what these have learnt in their local steps: nesterov: SGD with "
       "Nesterov's momentum; sgd: with plain momentum",
       {},
       has_local_steps()},
      {KEY(outer_optimizer, lr), "learning rate; 1 with momentum 0: the mean of the replicas' weights",
       above(0), has_local_steps()},
      {KEY(outer_optimizer, momentum), "momentum", from_up_to_below(0, 1), has_local_steps()},
      {KEY(outer_optimizer, reduce_dtype),
       "type in which replicas exchange how far they have come; int8, int4: in blocks of 256 with a scale, rounded "
       "stochastically by run.seed",
       {},
       has_local_steps()},
      {KEY(outer_optimizer, fragments),
       "parts of the model, sets of units, that are exchanged at different steps: a smaller peak of traffic",
       between(1, 1'000'000), has_local_steps()},
      {KEY(outer_optimizer, fragment_delay),
       "steps beside which a fragment is exchanged; 0: the next step waits for the exchange", at_least(0),
       has_local_steps()},
      {KEY(outer_optimizer, mixing),
       "share of a replica's own weights where they meet the result of an exchange, which lacks the steps beside it",
       from_up_to_below(0, 1), is_above_0("outer_optimizer.fragment_delay") && has_local_steps()},
  };
}

}  // namespace fsdp::config
