// How it is trained: [training], [evaluation], [optimizer] and [lr_scheduler].

#include <limits>

#include "config/key_tables.h"
#include "nn/architectures.h"
#include "optim/parameter_groups.h"
#include "optim/schedule.h"

namespace fsdp::config {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

Constraint at_least_one_or_inf() { return {.min = 1, .also = kInfinity}; }
Constraint two_betas() { return {.min = 0, .max = 1, .below_max = true, .length = 2}; }
Constraint three_numbers() { return {.length = 3}; }
Constraint two_numbers() { return {.min = 0, .length = 2}; }

}  // namespace

std::vector<Key> training_keys() {
  return {
      {KEY(training, steps), "optimizer steps of the whole run", between(1, 1'000'000'000)},
      {KEY(training, epochs),
       "instead of steps: passes over the training data, whatever the number of processes; 0: use steps",
       between(0, 1'000'000)},
      {KEY(training, global_batch_size),
       "samples per step over all ranks, which determine gradient_accumulation_steps; 0: use that key",
       between(0, 1'000'000'000)},
      {KEY(training, gradient_accumulation_steps),
       "micro-batches per step; 0 (the default beside global_batch_size): derived from global_batch_size",
       between(0, 1'000'000)},
      {KEY(training, batch_warmup_steps),
       "steps over which the micro-batches per step grow from 1 to gradient_accumulation_steps; 0: no growth",
       at_least(0)},
      {KEY(training, loss), "what training minimizes; validation always reports the cross entropy",
       one_of_registered(nn::losses())},
      {KEY(training, label_smoothing),
       "share of a target's probability that the loss spreads evenly over the vocabulary",
       from_up_to_below(0, 1)},
      {KEY(training, z_loss),
       "weight of the squared log of the sum of exp(logits) in the loss; 1e-4 is usual; 0: none",
       at_least(0)},
      {KEY(training, max_grad_norm), "clip gradients to this norm; 0: no clipping", at_least(0)},
      {KEY(training, norm_type), "p of the gradient norm; inf: the largest magnitude", at_least_one_or_inf()},
      {KEY(training, clip_grad_value),
       "instead of max_grad_norm: clip each element of the gradient to [-value, value]; 0: no clipping",
       at_least(0)},
      {KEY(training, device),
       "what a rank computes on; auto: a GPU where the program and the machine have them, else the CPU"},
      {KEY(training, float32_matmul_precision),
       "precision of float32 matrix products: highest, or high: on GPUs TF32, factors of 10 bits, several "
       "times as fast; on CPUs with matrix units (Intel AMX) factors of 16 bits, half the work"},
      {KEY(training, fused_kernels), "use kernels that fuse several operations into one pass over memory"},
      {KEY(training, matmul),
       "what multiplies matrices on the CPU: MKL, oneDNN, or the cores' matrix units (Intel AMX), fp32 as "
       "three parts in bf16; auto: the last of these that is available"},
      {KEY(training, float8),
       "tensorwise: linear layers multiply in 8-bit floating point, scaled tensor by tensor, on GPUs from "
       "compute capability 8.9; on the CPU for tests only"},
      {KEY(training, float8_exclude),
       "patterns (* and ?) of weights whose linear layers do not use float8: \"*.layers.0.*\""},
      {KEY(training, cuda_graphs),
       "capture the forward and backward of each block in CUDA graphs and replay them: for models whose "
       "kernels are shorter than their launches; activations keep their memory between steps"},
      {KEY(training, no_sync),
       "accumulate gradients of micro-batches unsharded and reduce after the last: less traffic, more "
       "memory"},
      {KEY(training, skip_nonfinite),
       "skip the update of a step whose loss or gradient norm is not finite; off: such a step ends the run"},
      {KEY(training, skip_zscore),
       "skip the update of a step whose loss or gradient norm is this many standard deviations above the "
       "mean; 0: off",
       at_least(0)},
      {KEY(training, skip_window), "number of past updates from which skip_zscore takes mean and deviation",
       between(2, 100'000)},
      {KEY(training, max_skipped_steps),
       "consecutive skipped steps that are tolerated; one more ends the run", at_least(0)},

      {KEY(evaluation, interval_steps), "steps between validations; 0: only after the last step",
       at_least(0)},
      {KEY(evaluation, max_samples), "maximum number of validation samples; 0: all", at_least(0)},
      {KEY(evaluation, patience),
       "end the run after this many consecutive validations without a better loss; 0: never", at_least(0)},
      {KEY(evaluation, min_delta), "a better loss is lower by more than this", at_least(0)},

      {KEY(optimizer, name),
       "the optimizer; adam, adamax, adagrad, adadelta: as in torch.optim, with weight decay in the "
       "gradient; lion: the sign of its momentum; lamb: Adam's step, scaled to each tensor's norm; adafactor: "
       "averages of rows and columns instead of elements; muon: orthogonal steps of whole matrices, adamw for "
       "the rest",
       one_of_registered(optim::optimizer_traits())},
      {KEY(optimizer, lr), "learning rate after warm-up", at_least(0)},
      {KEY(optimizer, betas), "adamw, adam, adamax, lion, lamb: decay of the two averages", two_betas()},
      {OPEN_KEY(optimizer, eps, optim::default_eps(c.optimizer.name)),
       "adamw, adam, adamax, adagrad, adadelta, lamb: added to the denominator; not given: 1e-10 with adagrad, "
       "1e-6 with adadelta and lamb, 1e-8 with the others",
       above(0),
       {},
       "name"},
      {KEY(optimizer, rho), "adadelta: decay of its averages", between(0, 1)},
      {KEY(optimizer, momentum), "sgd, muon: momentum", from_up_to_below(0, 1)},
      {KEY(optimizer, dampening), "sgd: share of a gradient that momentum leaves out", between(0, 1)},
      {KEY(optimizer, nesterov), "sgd, muon: Nesterov's momentum"},
      {OPEN_KEY(optimizer, weight_decay, optim::default_weight_decay(c.optimizer.name)),
       "weight decay (decoupled from the gradient in adamw, lion, lamb and muon); not given: 0.1 with adamw "
       "and muon, 0.01 with lamb, 0 with the others",
       at_least(0),
       {},
       "name"},
      {KEY(optimizer, no_decay), "patterns (* and ?) of parameters without weight decay"},
      {KEY(optimizer, groups),
       "parameters with their own rate (lr, or lr_scale times the optimizer's) or weight_decay; the first "
       "matching pattern counts: [[optimizer.groups]]"},
      {KEY(optimizer, adamw_parameters), "muon: patterns of matrices that adamw updates"},
      {KEY(optimizer, ns_steps), "muon: steps of the Newton-Schulz iteration", between(1, 99)},
      {KEY(optimizer, ns_coefficients), "muon: coefficients of that iteration", three_numbers()},
      {KEY(optimizer, adjust_lr_fn),
       "muon: how the rate of a matrix follows from its shape; match_rms_adamw: steps as long as adamw's"},

      {KEY(optimizer, relative_step), "adafactor: the rate is at most 1 / sqrt(step)"},
      {KEY(optimizer, scale_parameter),
       "adafactor: the rate is a share of the root mean square of a tensor's values"},
      {KEY(optimizer, clip_threshold),
       "adafactor: largest root mean square of a tensor's step, before it is multiplied by the rate",
       above(0)},
      {KEY(optimizer, decay_rate), "adafactor: averages of squares decay by 1 - step to this power",
       between(-1, 0)},
      {KEY(optimizer, beta1),
       "adafactor: decay of an average of steps, which costs a state per element; 0: none",
       from_up_to_below(0, 1)},
      {KEY(optimizer, adafactor_eps),
       "adafactor: added to squares of gradients; least root mean square of a tensor for scale_parameter",
       two_numbers()},

      {KEY(optimizer, ema_decay),
       "keep an exponential moving average of the weights with this decay, for fsdp-ckpt --ema; 0: none",
       from_up_to_below(0, 1)},

      {KEY(lr_scheduler, name), "shape of the learning-rate schedule",
       one_of_registered(optim::schedule_shapes())},
      {KEY(lr_scheduler, warmup_steps), "steps of linear warm-up", at_least(0)},
      {KEY(lr_scheduler, warmup_ratio),
       "instead of warmup_steps: the warm-up's share of all steps, such as 0.03; 0: use warmup_steps",
       from_up_to_below(0, 1)},
      {KEY(lr_scheduler, hold_steps), "tri_stage: steps at the full rate after warm-up", at_least(0)},
      {KEY(lr_scheduler, decay_steps),
       "wsd: steps of the final decay, 0: a tenth of the run; tri_stage: steps of the decay, 0: the rest",
       at_least(0)},
      {KEY(lr_scheduler, min_lr_ratio), "floor of the rate after warm-up, as a share of lr", between(0, 1)},
      {KEY(lr_scheduler, power), "polynomial: the exponent", above(0)},
  };
}

}  // namespace fsdp::config
