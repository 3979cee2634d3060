// Over which ranks, in which types and in how much memory: [fsdp] to [comm].

#include "setup/config/key_tables.h"

namespace fsdp::config {
namespace {

// Upper bounds keep products such as batch * sequence * vocabulary inside 64 bits; no real model comes near.
constexpr double kMaxMeshAxis = 1'000'000;

Constraint axis_or_rest() { return {.min = 1, .max = kMaxMeshAxis, .also = -1}; }
Constraint strictly_between(double min, double max) {
  return {.min = min, .max = max, .above_min = true, .below_max = true};
}

Condition shards() { return is_not("fsdp.strategy", "no_shard"); }
Condition reshards() { return is("fsdp.strategy", {"full_shard", "hybrid_shard"}); }
Condition is_hybrid() { return is("fsdp.strategy", {"hybrid_shard", "hybrid_shard_zero2"}); }
Condition has_replicas() {
  return is("fsdp.strategy", {"hybrid_shard", "hybrid_shard_zero2", "no_shard"}) ||
         is_given("fsdp.replicated_parameters") ||
         (is("fsdp.layout", {"per_parameter"}) && is("fsdp.shard_1d_parameters", {"false"}));
}
Condition has_float16() {
  return is("mixed_precision.param_dtype", {"float16"}) || is("mixed_precision.reduce_dtype", {"float16"});
}
Condition quantizes() {
  return is("fsdp.gather_dtype", {"int8", "int4"}) || is("fsdp.reduce_dtype", {"int8", "int4"});
}
Condition scales_the_loss() { return is_not("loss_scaler.enabled", "false") && has_float16(); }

}  // namespace

std::vector<Key> sharding_keys() {
  return {
      {KEY(fsdp, strategy),
       "full_shard: parameters, gradients, optimizer; shard_grad_op: parameters stay gathered; hybrid_shard, "
       "hybrid_shard_zero2: the same over mesh.data, replicas over mesh.dcn; no_shard: DDP"},
      {KEY(fsdp, hybrid_optimizer),
       "the ranks over which hybrid strategies shard gradients, master weights and optimizer state: replicated: "
       "those of mesh.data, a replica in each group; global: all; parameters are then gathered once a step between "
       "the groups",
       is_hybrid() && is_not("mesh.dcn", "1")},
      {KEY(fsdp, front),
       "what shards the model: fully_shard; spmd: FSDP via SPMD, with batches marked as parts of a global one"},
      {KEY(fsdp, layout),
       "how the parameters of a unit are sharded: flat: concatenated, evenly; per_parameter: each on one "
       "dimension"},
      {KEY(fsdp, shard_dimension),
       "the dimension that is cut: the largest (the first of equal ones), or the first",
       is("fsdp.layout", {"per_parameter"})},
      {KEY(fsdp, shard_1d_parameters),
       "cut biases and weights of norms too; off: whole on every rank, gradients all-reduced",
       is("fsdp.layout", {"per_parameter"})},
      {KEY(fsdp, min_num_params), "a stage with at least this many parameters of its own becomes a unit",
       at_least(0)},
      {KEY(fsdp, wrap_stages), "stage types that become units whatever their size"},
      {KEY(fsdp, exclude_stages), "stage types that stay in the unit around them"},
      {KEY(fsdp, leaf_stages), "stage types inside which nothing becomes a unit"},
      {KEY(fsdp, replicated_parameters),
       "patterns (* and ?) of parameters that stay whole on every rank; their gradients are all-reduced",
       shards()},
      {KEY(fsdp, replica_check_interval),
       "steps between comparisons of the replicas; 0: only before the first step", at_least(0),
       has_replicas()},
      {KEY(fsdp, reshard_after_forward), "free gathered parameters between forward and backward", reshards()},
      {KEY(fsdp, keep_after_forward),
       "patterns (* and ?) of units that stay gathered between forward and backward",
       reshards() && is("fsdp.reshard_after_forward", {"true"})},
      {KEY(fsdp, reshard_root_after_forward), "free the root unit between forward and backward too",
       reshards() && is("fsdp.reshard_after_forward", {"true"})},
      {KEY(fsdp, reshard_last_after_forward),
       "free the unit that forward uses last and backward first between the two as well",
       reshards() && is("fsdp.reshard_after_forward", {"true"})},
      {KEY(fsdp, forward_prefetch),
       "gather the next unit during this one's compute; implicit: the unit that is likely next, in any order; "
       "explicit: one order, checked across ranks",
       shards()},
      {KEY(fsdp, backward_prefetch),
       "when backward gathers the next unit: before (pre) or after (post) this one's reduction, or on use",
       shards()},
      {KEY(fsdp, limit_all_gathers), "gather at most one unit ahead of the one in use",
       shards() && is_not("fsdp.forward_prefetch", "none")},
      {KEY(fsdp, reduce_scatter_group),
       "run reduce-scatters in a group of their own, so that an all-gather need not wait for the reduction "
       "issued before it; backward then needs memory for one more unit, and ranks have twice the connections",
       shards()},
      {KEY(fsdp, param_storage),
       "type in which a rank keeps its shard; bfloat16, float16: without float32 master weights, updates are "
       "rounded stochastically"},
      {KEY(fsdp, cpu_offload), "keep shards and optimizer state in host memory"},
      {KEY(fsdp, move_grads_to_cpu), "keep the shards' gradients in host memory too",
       is("fsdp.cpu_offload", {"true"})},
      {KEY(fsdp, gradient_predivide_factor),
       "divides gradients before the sum over ranks; 0: 1, or for float16 about the square root of the "
       "number of ranks",
       at_least(0)},

      {KEY(fsdp, gather_dtype),
       "how gathered parameters travel between hosts: exact: in mixed_precision.param_dtype; int8, int4: blocks of 256 "
       "with a scale (ZeRO++'s quantized weights)",
       shards()},
      {KEY(fsdp, reduce_dtype),
       "how gradients travel between hosts when they are reduced: exact: in mixed_precision.reduce_dtype; int8, int4: "
       "blocks of 256 with a scale, once per hop (ZeRO++'s quantized gradients)"},
      {KEY(fsdp, quantize_links),
       "where gather_dtype and reduce_dtype apply: between_hosts: in groups with processes on several hosts; all: in all "
       "groups",
       quantizes()},
      {KEY(fsdp, error_feedback),
       "add what quantized gradients lack to those of the next reduction, in place of stochastic rounding; takes 4 bytes "
       "for each number that a process sends in a reduction, and is saved in checkpoints",
       is("fsdp.reduce_dtype", {"int8", "int4"})},

      {KEY(mixed_precision, param_dtype), "type of gathered parameters and of compute"},
      {KEY(mixed_precision, reduce_dtype), "type in which gradients are accumulated and reduced"},
      {KEY(mixed_precision, buffer_dtype),
       "type of the model's buffers; param_dtype: that of the parameters of their module, except of tables that a module "
       "computes, such as rotary angles, which are float32"},
      {KEY(mixed_precision, cast_forward_inputs), "cast the inputs of units to param_dtype"},
      {KEY(mixed_precision, keep_low_precision_grads),
       "the shard's gradient stays in reduce_dtype until the optimizer uses it",
       is_not("mixed_precision.reduce_dtype", "float32")},
      {KEY(mixed_precision, keep_low_precision_shards),
       "keep a copy of the shard in param_dtype, which the optimizer writes and gathers send, instead of a cast "
       "in each gather; costs 2 bytes a parameter of the shard; auto: on GPUs",
       is("fsdp.param_storage", {"float32"}) && is_not("mixed_precision.param_dtype", "float32")},
      {KEY(mixed_precision, keep_float32),
       "patterns (* and ?) of parameters that stay float32, and exact on all links: \"*norm*\"",
       is_not("mixed_precision.param_dtype", "float32") ||
           is_not("mixed_precision.reduce_dtype", "float32") || is_not("fsdp.param_storage", "float32") ||
           quantizes()},

      {KEY(loss_scaler, enabled),
       "scale the loss to stay in float16's range; auto: when a float16 type is in use", has_float16()},
      {KEY(loss_scaler, init_scale), "initial scale", above(0), scales_the_loss()},
      {KEY(loss_scaler, growth_factor),
       "the scale grows by this factor after growth_interval steps without overflow", above(1),
       scales_the_loss()},
      {KEY(loss_scaler, backoff_factor), "the scale is multiplied by this after an overflow",
       strictly_between(0, 1), scales_the_loss()},
      {KEY(loss_scaler, growth_interval), "steps without overflow before the scale grows", at_least(1),
       scales_the_loss()},
      {KEY(loss_scaler, min_scale), "an overflow at this scale ends the run", above(0), scales_the_loss()},

      {KEY(activation_checkpointing, mode),
       "what backward recomputes; full: everything in a stage except its input; selective: the operations of stages that "
       "cost the least time for memory_budget; offload: as selective, but what stages save may wait in host memory (GPUs)"},
      {KEY(activation_checkpointing, memory_budget),
       "of the memory between the least that the mode can do, 0 (selective: that of mode full), and that of none, 1, the "
       "share that activations may take",
       between(0, 1), is("activation_checkpointing.mode", {"selective", "offload"})},
      {KEY(activation_checkpointing, feed_forward_tokens),
       "tokens of a row that a feed-forward computes at a time, again in backward, so that its activations are "
       "those of so many tokens; 0: all",
       at_least(0)},
      {KEY(activation_checkpointing, stage_types), "types of the stages that are recomputed or moved",
       is_not("activation_checkpointing.mode", "none")},

      {KEY(mesh, dcn),
       "groups of processes over the slow network: replicas with fsdp.strategy hybrid_shard; -1: the rest",
       axis_or_rest()},
      {KEY(mesh, data), "processes of such a group; -1: all processes that the other axes leave",
       axis_or_rest()},
      {KEY(mesh, context),
       "parts of each sequence, for sequences whose activations are too large for one process; units are sharded over "
       "data x context; -1: the rest",
       axis_or_rest()},
      {KEY(mesh, context_attention),
       "how attention comes to the keys and values of the other parts; ring: one part after another, beside the "
       "compute; gather: all at once",
       is_not("mesh.context", "1")},
      {KEY(mesh, model),
       "parts of each layer, which as many processes compute together (tensor parallelism), for models of which a "
       "block or its activations are too large for one process; -1: the rest",
       axis_or_rest()},
      {KEY(mesh, sequence_parallel),
       "between the parts of layers, activations are cut along the sequence; off: every process has them whole",
       is_not("mesh.model", "1")},

      {KEY(comm, backend),
       "how processes communicate: shm: shared memory inside one host; gloo: TCP; hierarchical: shm inside "
       "each host and gloo between hosts; auto: shm on one host, hierarchical on several with the same "
       "number of processes, 2 or more, else gloo, with shm for groups on one host; mpi: the system's MPI, by whose mpirun or srun the processes are started; "
       "hierarchical_mpi: shm inside each host and MPI between hosts; tensors on GPUs use NCCL with auto and with nccl, which "
       "is auto for everything else; with the other backends they go through host memory",
       Constraint{.because = "this version has no other backend"}},
      {KEY(comm, timeout_seconds), "timeout of a collective and of the rendezvous",
       Constraint{.min = 0, .max = 1e9, .above_min = true}},
  };
}

}  // namespace fsdp::config
