#include "tools/plan/memory.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <initializer_list>
#include <iterator>
#include <set>
#include <utility>

#include "base/tensor/mapped_allocator.h"
#include "model/families/architectures.h"
#include "model/families/families.h"
#include "model/kernels/fused.h"
#include "model/kernels/meta.h"
#include "model/parallel/step_collectives.h"
#include "tools/plan/unit_memory.h"

namespace fsdp::plan {
namespace {

using shard::UnitSizes;

constexpr int kStepsUntilAllAreAlike = 3;

bool is_offloaded(const UnitSizes& unit) { return unit.options.storage.cpu_offload; }

/// Those whose shards and optimizer state are where the rank computes.
Units on_device(const Units& units) {
  Units found;
  std::ranges::remove_copy_if(units, std::back_inserter(found), is_offloaded);
  return found;
}

/// Whether gradients are freed in backward (run/train/arriving_gradients.h).
bool updates_in_backward(const config::Config& config, const RecordedPass& pass) {
  return !pass.on_device() && config::updates_units_alone(config);
}

struct StepPeak {
  util::Arena::Shape arena;  ///< arena of the buffer pool
  int64_t common = 0;        ///< length of the arena that the ranks share
  int64_t beside = 0;        ///< peak of everything else
  int64_t sum() const { return arena.length + common + beside; }
};

StepPeak step_peak(const config::Config& config, const Units& units, const RecordedPass& pass,
                   const UnitMemoryOptions& options) {
  const int64_t micro_batches = config.training.gradient_accumulation_steps;
  MemoryTape tape;
  UnitMemory memory(config, units, tape, options);
  // From the second step on, the order of units is known and the pool has its final size. Micro-batches
  // between the first and the last need no more than these two, unless sums wait for their neighbours.
  const bool by_sample = config.training.reproducible == config::Reproducible::kWorldSize;
  const int64_t others = by_sample ? micro_batches - 1 : std::min<int64_t>(micro_batches - 1, 1);
  for (int step = 0; step < kStepsUntilAllAreAlike; ++step) {
    tape.reset_peak();
    for (int64_t i = 0; i < others; ++i) {
      pass.play(tape, memory.events(/*sync=*/!config.training.no_sync, /*is_last=*/false));
    }
    pass.play(tape, memory.events(/*sync=*/true, /*is_last=*/true));
    if (options.update_temporaries.empty()) {
      int64_t temporaries = update_temporaries(config, options.count_moved ? units : on_device(units));
      if (streams_states(config, pass)) {
        temporaries = 0;
        for (const UnitSizes& unit : units) temporaries = std::max(temporaries, staged_bytes(config, unit));
      }
      tape.touch(temporaries);
    }
    memory.zero_gradients();
  }
  return {.arena = memory.arena(),
          .common = memory.common_bytes(),
          .beside = tape.peak() - memory.arena().length - memory.common_bytes()};
}

/// The bound for any network. The arena keeps its largest length, so the peak of the rest may be of another
/// timing.
StepPeak step_peak_at_any_timing(const config::Config& config, const Units& units, const RecordedPass& pass,
                                 UnitMemoryOptions options) {
  StepPeak most;
  options.on_device = pass.on_device();
  if (updates_in_backward(config, pass)) {
    for (const UnitSizes& unit : units)
      options.update_temporaries.push_back(update_temporaries(config, {unit}));
  }
  for (CollectiveTiming timing :
       {CollectiveTiming::kAtOnce, CollectiveTiming::kBesideCompute, CollectiveTiming::kWhenWaitedFor}) {
    options.timing = timing;
    const StepPeak peak = step_peak(config, units, pass, options);
    if (peak.arena.length > most.arena.length) most.arena = peak.arena;
    most.common = std::max(most.common, peak.common);
    most.beside = std::max(most.beside, peak.beside);
  }
  if (most.common == 0) return most;
  // The first rank may take memory for a unit before the others have given back that of one more unit. If
  // gradients are clipped, however, all ranks have given back the root when the next step begins.
  const bool meet = config.training.max_grad_norm > 0 && config.training.gradient_accumulation_steps == 1;
  int64_t largest = 0;
  for (const UnitSizes& unit : units) {
    if (!(unit.is_root && meet))
      largest = std::max(largest, std::max(unit.unsharded_bytes(), unit.communication_bytes()));
    most.common += util::Arena::kAlignment;
  }
  most.common += largest;
  return most;
}

int most_shards(const Units& units) {
  int most = 1;
  for (const UnitSizes& unit : units) most = std::max(most, unit.groups.shards);
  return most;
}

bool shares_memory(const config::Config& config, const Units& units) {
  const bool is_coded = std::ranges::any_of(
      units, [](const UnitSizes& unit) { return unit.links.gather != comm::LinkType::kExact; });
  return comm::row_of(config.comm.backend).traits.shares_memory && most_shards(units) > 1 && !is_coded;
}

/// Resident memory. Memory that ranks gather into together is no tensor, so the allocator holds no free
/// blocks for it. Through shared memory a rank reads its part of the other ranks' gradients in place; their
/// pages count as resident here too. With several hosts it is less, because a rank reads only from its own
/// host.
int64_t resident_bytes(const config::Config& config, const Units& units, int64_t beside) {
  const bool common = shares_memory(config, units);
  const StepPeak peak =
      step_peak_at_any_timing(config, units, record_pass(config, PassDevice::kCpu), {.common = common});
  int64_t bytes = util::most_held_bytes(beside + peak.beside + peak.arena.length) + peak.common;
  if (common) {
    const int64_t ranks = most_shards(units);
    bytes += peak.arena.length * (ranks - 1) / ranks;
  }
  return bytes;
}

}  // namespace

shard::StepFormula step_formula(const config::Config& config, const Units& units) {
  const config::TrainingOptions& training = config.training;
  return shard::step_formula(units, config::shard_options(config),
                             {.micro_batches = training.gradient_accumulation_steps,
                              .no_sync = training.no_sync,
                              .on_device = is_for_gpu(config)});
}

NcclMemory nccl_memory(const config::Config& config, const comm::MeshShape& mesh, const Units& units) {
  // Measured by others with the defaults of NCCL on A100s that NVLink connects (github.com/NVIDIA/nccl,
  // issue 964). With fewer channels, as over PCIe, it is less.
  constexpr int64_t kMiB = 1 << 20, kOfTwo = 544 * kMiB, kOfMore = 688 * kMiB;
  const int world = mesh.world_size();
  const bool is_over_nccl =
      comm::row_of(config.comm.backend).traits.on_gpus != comm::GpuTensors::kThroughHostMemory;
  if (world == 1 || !is_over_nccl || config.training.device == config::DeviceChoice::kCpu) return {};
  enum class Of { kWorld, kShards, kReductions, kReplicas, kSlices, kContext, kModel };
  std::set<std::pair<Of, int>> groups{{Of::kWorld, world}};
  const auto add = [&](Of of, int ranks) {
    if (ranks > 1) groups.insert({of, ranks});
  };
  // A unit's group of all ranks is the world's.
  const auto add_of_unit = [&](Of of, int ranks) { add(ranks == world ? Of::kWorld : of, ranks); };
  for (const UnitSizes& unit : units) {
    add_of_unit(Of::kShards, unit.groups.shards);
    add_of_unit(Of::kReplicas, unit.groups.replicas);
    add_of_unit(Of::kSlices, unit.groups.slices);
    if (config.fsdp.reduce_scatter_group) add(Of::kReductions, unit.groups.shards);
  }
  add(Of::kContext, mesh.context);
  add(Of::kModel, mesh.model);
  NcclMemory memory;
  for (const auto& [of, ranks] : groups) {
    ++memory.communicators;
    memory.bytes += ranks == 2 ? kOfTwo : kOfMore;
  }
  return memory;
}

namespace {

/// The number of layers whose stages of such a type are recomputed as a whole.
int64_t recomputed_layers(const config::Config& config, std::initializer_list<const char*> types) {
  const auto& checkpointing = config.activation_checkpointing;
  const bool are_meant = std::ranges::any_of(checkpointing.stage_types, [&](const std::string& type) {
    return std::ranges::find(types, type) != types.end();
  });
  if (!are_meant || checkpointing.mode == nn::RecomputeMode::kNone) return 0;
  if (checkpointing.mode == nn::RecomputeMode::kFull) return config.model.num_hidden_layers;
  return std::ranges::count_if(*checkpointing.chosen,
                               [](const nn::StageRecomputation& stage) { return stage.whole; });
}

}  // namespace

shard::Traffic attention_traffic(const config::Config& config, const comm::MeshShape& mesh) {
  const int64_t context = mesh.context;
  if (context == 1) return {};
  const nn::ModelOptions& model = config.model;
  const int64_t heads = nn::key_value_heads(model);
  const int64_t width = nn::head_width(model) * std::max<int64_t>(1, heads / mesh.model);
  const int64_t keys = config.data.micro_batch_size * config.data.sequence_length / context * width;
  const int64_t sent = 2 * keys * util::element_size(util::scalar_type(config.mixed_precision.param_dtype)),
                gradients = 2 * keys * 4;
  const int64_t times = config.training.gradient_accumulation_steps, layers = times * model.num_hidden_layers;
  // Collectives in forward and backward, and in forwards that run again.
  const int64_t passes = 2 * layers + times * recomputed_layers(config, {"block", "attention"});
  if (config.mesh.context_attention == comm::ContextAttention::kGather) {
    return {.all_gathers = passes,
            .all_gather_bytes = passes * sent,
            .reduce_scatters = layers,
            .reduce_scatter_bytes = layers * gradients};
  }
  return {.shifts = passes * (context - 1) + layers * (context - 1),
          .shift_bytes = passes * (context - 1) * sent + layers * (context - 1) * gradients};
}

shard::Traffic layer_traffic(const config::Config& config, const comm::MeshShape& mesh, PassDevice device) {
  const nn::ModelOptions& model = config.model;
  if (!nn::is_built_in_architecture(model.architecture)) return {};
  const int64_t rows = config.data.micro_batch_size, tokens = config.data.sequence_length / mesh.context;
  const int64_t vocabulary = (model.vocab_size + mesh.model - 1) / mesh.model;
  const int64_t element = util::element_size(util::scalar_type(config.mixed_precision.param_dtype));
  const kernels::MetaDevice scored_on{.type = is_for_gpu(config, device) ? c10::kCUDA : c10::kCPU};
  const kernels::MetaDeviceGuard stands_for(scored_on);
  const at::Tensor scored =
      at::empty({rows * tokens, model.hidden_size},
                at::TensorOptions(util::scalar_type(config.mixed_precision.param_dtype)).device(at::kMeta));
  const int64_t chunk = kernels::cross_entropy_chunk_rows(scored, vocabulary, model.logits_mib << 20);
  const parallel::StepCollectives micro_batch =
      parallel::step_collectives({.ranks = mesh.model,
                                  .layers = model.num_hidden_layers,
                                  .hidden = model.hidden_size,
                                  .rows = rows,
                                  .tokens = tokens,
                                  .element_bytes = element,
                                  .loss_chunks = (rows * tokens + chunk - 1) / chunk,
                                  .sequence_parallel = config.mesh.sequence_parallel,
                                  .recomputes_blocks = recomputed_layers(config, {"block"}) > 0});
  const int64_t times = config.training.gradient_accumulation_steps;
  return {.all_gathers = times * micro_batch.all_gather.calls,
          .all_gather_bytes = times * micro_batch.all_gather.bytes,
          .reduce_scatters = times * micro_batch.reduce_scatter.calls,
          .reduce_scatter_bytes = times * micro_batch.reduce_scatter.bytes,
          .all_reduces = times * micro_batch.all_reduce.calls,
          .all_reduce_bytes = times * micro_batch.all_reduce.bytes};
}

namespace {

int64_t code_bytes(const Units& units) {
  int64_t errors = 0, codes = 0;
  for (const UnitSizes& unit : units) {
    errors += unit.error_bytes();
    codes = std::max(codes, unit.code_bytes());
  }
  return errors + codes;
}

}  // namespace

int64_t device_peak(const config::Config& config, const Units& units, const RecordedPass& pass) {
  int64_t shards = code_bytes(units), largest_sent = 0, largest_moved = 0;
  for (const UnitSizes& unit : units) {
    if (!is_offloaded(unit) || unit.groups.slices > 1) shards += unit.source_bytes();
    if (!is_offloaded(unit)) shards += unit.shard_bytes();
    if (is_offloaded(unit)) largest_sent = std::max(largest_sent, unit.sent_bytes());
    if (unit.options.storage.move_grads_to_cpu && unit.has_parts()) {
      largest_moved = std::max(largest_moved, unit.result_bytes());
    }
  }
  const bool none_offloaded = std::ranges::none_of(units, is_offloaded);
  // While one gradient is copied to the host, the next is reduced.
  return shards + optimizer_state_bytes(config.optimizer, on_device(units)) + pass.kept_bytes() +
         step_peak_at_any_timing(config, units, pass, {.count_moved = none_offloaded}).sum() +
         kShardsOnTheDevice * largest_sent + largest_moved - streamed_states(config, on_device(units), pass);
}

MemoryPlan plan_memory(const config::Config& config, const Units& units, const RecordedPass& pass) {
  const shard::StepFormula step = step_formula(config, units);
  MemoryPlan plan;
  plan.shards = step.shard_bytes;
  plan.sources = step.source_bytes;
  plan.optimizer = optimizer_state_bytes(config.optimizer, units);
  for (const UnitSizes& unit : units) {
    if (!updates_in_backward(config, pass)) plan.gradients += unit.shard_gradient_bytes();
    if (is_offloaded(unit)) plan.pinned += unit.shard_bytes();
    if (is_offloaded(unit) && unit.groups.slices == 1) plan.pinned += unit.source_bytes();
    plan.sources_on_device = plan.sources_on_device || unit.groups.slices > 1;
    const bool is_moved = unit.options.storage.move_grads_to_cpu && unit.has_trainable_parameters;
    if (is_moved) plan.pinned += unit.result_bytes();
  }
  plan.buffers = step.unsharded_bytes;
  plan.saved_activations = pass.saved_bytes();
  plan.activations_on_host = pass.host_bytes();
  plan.states_on_host = streamed_states(config, units, pass);
  plan.pinned += plan.activations_on_host + plan.states_on_host;
  plan.codes = code_bytes(units);
  const int64_t at_rest = plan.shards + plan.sources + plan.optimizer + plan.codes + pass.kept_bytes();
  plan.device_peak = device_peak(config, units, pass);
  plan.peak = std::ranges::any_of(units, is_offloaded) || plan.states_on_host > 0
                  ? at_rest + step_peak_at_any_timing(config, units, pass, {}).sum()
                  : plan.device_peak;
  plan.resident = resident_bytes(config, units, at_rest);
  return plan;
}

BufferShapes buffer_shapes(const config::Config& config, const Units& units, bool common, PassDevice device) {
  const StepPeak peak =
      step_peak_at_any_timing(config, units, record_pass(config, device), {.common = common});
  return {.own = peak.arena, .common = peak.common};
}

}  // namespace fsdp::plan
