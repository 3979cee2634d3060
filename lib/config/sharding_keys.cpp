// Over which ranks, in which types and in how much memory: [fsdp] to [comm].

#include "config/key_tables.h"

namespace fsdp::config {
namespace {

// Upper bounds keep products such as batch * sequence * vocabulary inside 64 bits; no real model comes near.
constexpr double kMaxMeshAxis = 1'000'000;

Constraint axis_or_rest() { return {.min = 1, .max = kMaxMeshAxis, .also = -1}; }
Constraint strictly_between(double min, double max) {
  return {.min = min, .max = max, .above_min = true, .below_max = true};
}

}  // namespace

std::vector<Key> sharding_keys() {
  return {
      {KEY(fsdp, strategy),
       "full_shard: parameters, gradients, optimizer; shard_grad_op: parameters stay gathered; hybrid_shard, "
       "hybrid_shard_zero2: the same over mesh.data, replicas over mesh.dcn; no_shard: DDP"},
      {KEY(fsdp, layout),
       "how the parameters of a unit are sharded: flat: concatenated, evenly; per_parameter: each on one "
       "dimension"},
      {KEY(fsdp, shard_dimension),
       "per_parameter: the dimension that is cut: the largest (the first of equal ones), or the first"},
      {KEY(fsdp, shard_1d_parameters),
       "per_parameter: cut biases and weights of norms too; off: whole on every rank, gradients all-reduced"},
      {KEY(fsdp, min_num_params), "a stage with at least this many parameters of its own becomes a unit",
       at_least(0)},
      {KEY(fsdp, wrap_stages), "stage types that become units whatever their size"},
      {KEY(fsdp, exclude_stages), "stage types that stay in the unit around them"},
      {KEY(fsdp, leaf_stages), "stage types inside which nothing becomes a unit"},
      {KEY(fsdp, replicated_parameters),
       "patterns (* and ?) of parameters that stay whole on every rank; their gradients are all-reduced"},
      {KEY(fsdp, replica_check_interval),
       "steps between comparisons of the replicas; 0: only before the first step", at_least(0)},
      {KEY(fsdp, reshard_after_forward),
       "full_shard, hybrid_shard: free gathered parameters between forward and backward"},
      {KEY(fsdp, keep_after_forward),
       "patterns (* and ?) of units that stay gathered between forward and backward"},
      {KEY(fsdp, reshard_root_after_forward), "free the root unit between forward and backward too"},
      {KEY(fsdp, reshard_last_after_forward),
       "free the unit that forward uses last and backward first between the two as well"},
      {KEY(fsdp, forward_prefetch),
       "gather the next unit during this one's compute; implicit: the likely next, in any order; explicit: in "
       "one order, which ranks compare"},
      {KEY(fsdp, backward_prefetch),
       "when backward gathers the next unit: before (pre) or after (post) this one's reduction, or on use"},
      {KEY(fsdp, limit_all_gathers), "gather at most one unit ahead of the one in use"},
      {KEY(fsdp, cpu_offload), "keep master weights and optimizer state in host memory"},
      {KEY(fsdp, move_grads_to_cpu), "with cpu_offload: the shards' gradients too"},
      {KEY(fsdp, gradient_predivide_factor),
       "divides gradients before the sum over ranks; 0: 1, or for float16 about the square root of the "
       "number of ranks",
       at_least(0)},

      {KEY(mixed_precision, param_dtype), "type of gathered parameters and of compute"},
      {KEY(mixed_precision, reduce_dtype), "type in which gradients are accumulated and reduced"},
      {KEY(mixed_precision, buffer_dtype), "type of the model's buffers"},
      {KEY(mixed_precision, cast_forward_inputs), "cast the inputs of units to param_dtype"},
      {KEY(mixed_precision, keep_low_precision_grads),
       "the shard's gradient stays in reduce_dtype until the optimizer uses it"},
      {KEY(mixed_precision, keep_float32), "patterns (* and ?) of parameters that stay float32: \"*norm*\""},

      {KEY(loss_scaler, enabled),
       "scale the loss to stay in float16's range; auto: when a float16 type is in use"},
      {KEY(loss_scaler, init_scale), "initial scale", above(0)},
      {KEY(loss_scaler, growth_factor),
       "the scale grows by this factor after growth_interval steps without overflow", above(1)},
      {KEY(loss_scaler, backoff_factor), "the scale is multiplied by this after an overflow",
       strictly_between(0, 1)},
      {KEY(loss_scaler, growth_interval), "steps without overflow before the scale grows", at_least(1)},
      {KEY(loss_scaler, min_scale), "an overflow at this scale ends the run", above(0)},

      {KEY(activation_checkpointing, mode),
       "what backward recomputes; full: everything in a stage but its input"},
      {KEY(activation_checkpointing, stage_types), "types of the stages that are recomputed"},

      {KEY(mesh, dcn),
       "groups of processes over the slow network: replicas with fsdp.strategy hybrid_shard; -1: the rest",
       axis_or_rest()},
      {KEY(mesh, data), "processes of such a group; -1: all processes that the other axes leave",
       axis_or_rest()},
      {KEY(mesh, model), "parts of a tensor-parallel model",
       only("1", "this version has no tensor parallelism")},

      {KEY(comm, backend),
       "how processes communicate: shm: shared memory inside one host; gloo: TCP; hierarchical: shm inside "
       "each host and gloo between hosts; auto: shm on one host, hierarchical on several with the same "
       "number of processes, 2 or more, else gloo; tensors on GPUs use NCCL with auto and with nccl, which "
       "is auto for everything else; with the other backends they go through host memory",
       Constraint{.because = "this version has no other backend"}},
      {KEY(comm, timeout_seconds), "timeout of a collective and of the rendezvous",
       Constraint{.min = 0, .max = 1e9, .above_min = true}},
  };
}

}  // namespace fsdp::config
