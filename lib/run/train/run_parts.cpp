#include "run/train/run_parts.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/tensor.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/device/cuda.h"
#include "base/util/error.h"
#include "base/util/hash.h"
#include "base/util/log.h"
#include "base/util/nearest_pattern.h"
#include "base/util/start_clock.h"
#include "base/util/system.h"
#include "base/util/text.h"
#include "comm/api/communicator.h"
#include "data/loading/packed_documents.h"
#include "data/tokenizers/tokenizer.h"
#include "model/families/families.h"
#include "model/nn/decoder.h"
#include "model/nn/recompute.h"
#include "model/parallel/cut_sequence.h"
#include "run/train/arithmetic.h"
#include "run/train/device.h"
#include "run/train/initial_weights.h"
#include "run/train/layer_modes.h"
#include "run/train/reproducible_step.h"
#include "shard/engine/engine_sizes.h"
#include "shard/engine/fully_shard.h"
#include "shard/spmd/spmd_fully_shard.h"
#include "shard/units/option_conflicts.h"
#include "state/optim/engine_shards.h"
#include "tools/plan/logits.h"
#include "tools/plan/machines.h"
#include "tools/plan/recomputation.h"

namespace fsdp::train {

static_assert(plan::kShardsOnTheDevice == shard::OffloadStreams::kPlaces);

namespace {

/// Returns the place of this rank's rows in the global batch. All ranks of a context group have the same
/// rows.
data::Placement placement(const config::Config& config, const comm::Communicator& communicator) {
  const comm::MeshShape mesh = comm::resolve_mesh(config.mesh, communicator.world_size());
  const comm::MeshCoordinate place = mesh.coordinate_of(communicator.rank());
  return {.rank = place.dcn * mesh.data + place.data,
          .world_size = mesh.row_ranks(),
          .gradient_accumulation_steps = config.training.gradient_accumulation_steps};
}

/// Throws Error(kUsage) for a tokenizer with more tokens than the model, which would yield its first unknown
/// token in the middle of a run. A tokenizer that cannot be loaded is no error: batches do not depend on it.
void require_tokenizer_fits(const config::Config& config) {
  if (config.data.tokenizer == "bytes") return;  // the default, whatever the tokens are
  std::unique_ptr<data::Tokenizer> tokenizer;
  try {
    tokenizer = data::make_tokenizer(config.data.tokenizer);
  } catch (const util::Error&) {
    return;
  }
  if (tokenizer->vocab_size() <= config.model.vocab_size) return;
  fail(ErrorKind::kUsage, "model.vocab_size must be at least ", tokenizer->vocab_size(),
       ", the number of tokens of data.tokenizer ", config.data.tokenizer, ", but is ",
       config.model.vocab_size, "; set model.vocab_size = ", tokenizer->vocab_size(),
       config.model.init_from.empty() ? "" : ", whose new rows become the mean of the stored ones",
       ", or set data.tokenizer to the tokenizer of this model");
}

}  // namespace

namespace {

/// Returns the options with the folder of the tokens of texts: that of the machine's user, or the run's.
data::DataOptions with_cache(const config::Config& config) {
  data::DataOptions options = config.data;
  const char* const folder = std::getenv("FSDP_CACHE_DIR");
  options.cache_folder = folder != nullptr && *folder != '\0' ? folder : config.run.output_dir;
  return options;
}

}  // namespace

data::TrainLoader open_training_data(const config::Config& config, const comm::Communicator& communicator) {
  require_tokenizer_fits(config);
  return data::TrainLoader(with_cache(config), config.model.vocab_size,
                           static_cast<uint64_t>(config.run.seed), placement(config, communicator));
}

std::shared_ptr<const parallel::CutSequence> cut_sequence(const config::Config& config,
                                                          const comm::Mesh& mesh) {
  if (mesh.shape().context == 1) return nullptr;
  return std::make_shared<parallel::CutSequence>(
      parallel::CutSequence{.rank = mesh.coordinate().context,
                            .degree = mesh.shape().context,
                            .group = mesh.context(),
                            .attention = config.mesh.context_attention.value()});
}

namespace {

/// Sets Batch::is_token of a batch with padding.
void mark_tokens(data::Batch& batch) {
  const int64_t length = batch.inputs.size(1);
  if (std::ranges::all_of(batch.row_tokens, [&](int64_t tokens) { return tokens == length; })) return;
  batch.is_token = at::arange(length).unsqueeze(0) < at::tensor(batch.row_tokens).unsqueeze(1);
}

/// Returns the number of which the length of a row of packed documents must be a multiple.
int64_t multiple_of_packed_rows(const config::Config& config, const comm::MeshShape& mesh) {
  int64_t multiple = mesh.context > 1 ? 2 * mesh.context : 1;
  if (config.mesh.sequence_parallel && mesh.model > 1) multiple *= mesh.model;
  if (config.training.float8 != config::Float8Recipe::kNone) multiple *= 16;
  return multiple;
}

}  // namespace

data::PrefetchOptions prefetch_options(const config::Config& config, const comm::Mesh& mesh) {
  data::PrefetchOptions options{.depth = config.data.prefetch_batches, .device = mesh.world()->device()};
  const bool balances = nn::aux_loss_coef(config.model) > 0;
  const int64_t multiple = config.data.preference.is_on() ? multiple_of_packed_rows(config, mesh.shape()) : 1;
  options.on_reading = [balances, multiple](data::Batch& batch) {
    if (multiple > 1) data::pad_packed(batch, multiple);
    if (balances) mark_tokens(batch);
  };
  if (const auto cut = cut_sequence(config, mesh)) {
    options.on_reading = [cut, before = options.on_reading](data::Batch& batch) {
      before(batch);
      for (at::Tensor* tokens : batch.device_tensors()) *tokens = cut->part_of(*tokens, 1);
      if (!batch.scored) batch.counted = batch.targets.ne(data::kIgnoredTarget).sum().item<int64_t>();
    };
  }
  if (config.fsdp.front == config::Front::kSpmd) {
    options.on_arrival = [mesh](data::Batch& batch) {
      for (const at::Tensor& tensor : {batch.inputs, batch.targets, batch.is_token}) {
        if (tensor.defined()) shard::mark_local_shard(tensor, mesh, shard::batch_spec());
      }
    };
  }
  return options;
}

std::function<void(const at::Tensor&)> marks_whole_inputs(const config::Config& config,
                                                          const comm::Mesh& mesh) {
  if (config.fsdp.front != config::Front::kSpmd) return nullptr;
  return [mesh](const at::Tensor& input) { shard::mark_local_shard(input, mesh, {}); };
}

data::ValidationLoader open_validation_data(const config::Config& config,
                                            const comm::Communicator& communicator) {
  data::DataOptions options = with_cache(config);
  options.teacher = {};  // validations report the cross entropy
  return data::ValidationLoader(options, config.model.vocab_size, config.evaluation.max_samples,
                                placement(config, communicator));
}

int64_t micro_steps_of(const config::TrainingOptions& options, int64_t step) {
  const int64_t most = options.gradient_accumulation_steps, warmup = options.batch_warmup_steps;
  if (step > warmup) return most;
  const auto risen = static_cast<__int128>(most - 1) * (step - 1) / warmup;  // the product may need 128 bits
  return 1 + static_cast<int64_t>(risen);
}

int64_t steps_of_epochs(const config::TrainingOptions& options, const data::TrainLoader& loader,
                        const RunPosition& position) {
  double left =
      options.epochs * static_cast<double>(loader.num_samples()) - static_cast<double>(position.samples_seen);
  int64_t step = position.step;
  for (; step < options.batch_warmup_steps && left > 0; ++step) {
    left -= static_cast<double>(loader.samples_per_micro_step() * micro_steps_of(options, step + 1));
  }
  // The last step of the warm-up is left out if it would see too many samples.
  if (left < 0 && step > position.step) --step;
  left = std::max(left, 0.0);
  const auto whole = static_cast<int64_t>(std::floor(left / static_cast<double>(loader.samples_per_step())));
  return std::max<int64_t>(1, step + whole);
}

namespace {

/// Shards the model by SPMD with the units that fully_shard() would choose.
std::shared_ptr<shard::Engine> shard_by_spmd(nn::Stage& model, const shard::ShardOptions& options,
                                             const comm::Mesh& mesh, std::shared_ptr<comm::Trace> trace,
                                             const shard::Materialize& materialize) {
  shard::plan_units(model, options);  // for its errors: policies do not know which stage types there are
  shard::SpmdOptions spmd;
  spmd.shard = options;
  spmd.auto_wrap_policy = shard::any_of(
      {shard::stage_type_policy(options.wrap_stages), shard::threshold_policy(options.min_num_params)});
  spmd.shard.wrap_stages.clear();
  spmd.materialize = materialize;
  return shard::spmd_fully_shard(model, mesh, {}, std::move(spmd), std::move(trace));
}

/// The speed of this machine by its data sheet, if that is known, and half of its free memory.
plan::MachineSpeed speed_of(const comm::Communicator& world, const config::Config& config) {
  plan::MachineSpeed speed;
  if (!world.device().is_cuda()) return speed;
  const std::string gpu = util::cuda_device(world.device().index()).name;
  if (data_sheet_rate(gpu, config.mixed_precision.param_dtype) > 0) {
    speed = plan::machines_of(config, {.gpu = gpu}).speed();
  }
  const int here = std::max(1, util::cuda_status().devices);
  if (const auto free = util::kilobytes("/proc/meminfo", "MemAvailable")) {
    speed.host_memory_bytes = 0.5 * 1024 * static_cast<double>(*free) / here;
  }
  return speed;
}

/// Returns the options with the operations to recompute for a budget of memory. The first rank chooses,
/// because the kernels of another machine may keep other tensors. Collective.
nn::CheckpointingOptions checkpointing_of(const config::Config& config, const comm::Mesh& mesh,
                                          plan::PassDevice device) {
  nn::CheckpointingOptions options = config.activation_checkpointing;
  if (!nn::has_budget(options.mode) || options.chosen) return options;
  comm::Communicator& world = *mesh.world();
  nlohmann::json chosen = {{"stages", nlohmann::json::array()}};
  comm::agree(world, "choice of what backward recomputes", [&] {
    if (world.rank() != 0) return;
    const plan::Recomputation choice = plan::choose_recomputation(config, speed_of(world, config), device);
    for (const nn::StageRecomputation& stage : *choice.options.chosen) {
      chosen["stages"].push_back({stage.path, stage.operations, stage.whole, stage.offload});
    }
    chosen["patience"] = choice.options.offload_patience;
  });
  const auto texts =
      comm::all_gather_text(world, chosen.dump(), {.unit = "choice of what backward recomputes"});
  const nlohmann::json agreed = nlohmann::json::parse(texts[0]);
  options.chosen.emplace();
  for (const nlohmann::json& stage : agreed["stages"]) {
    options.chosen->push_back({.path = stage[0],
                               .operations = stage[1].get<std::vector<std::string>>(),
                               .whole = stage[2],
                               .offload = stage[3]});
  }
  options.offload_patience = agreed["patience"];
  return options;
}

/// Returns model.logits_mib. The first rank chooses, because GPUs may differ. Collective.
int64_t logits_mib_of(const config::Config& config, const comm::Mesh& mesh) {
  comm::Communicator& world = *mesh.world();
  if (!world.device().is_cuda() || config.training.logits_mib != 0) return config.model.logits_mib;
  int64_t chosen = 0;
  comm::agree(world, "memory of logits", [&] {
    if (world.rank() != 0) return;
    chosen =
        plan::choose_logits_mib(config, mesh.shape(), util::cuda_device(world.device().index()).memory_bytes);
  });
  return std::stoll(comm::all_gather_text(world, std::to_string(chosen), {.unit = "memory of logits"})[0]);
}

/// The memory in which units are gathered; null unless all of them are.
comm::CommonMemory* common_memory_of(const shard::Engine& engine) {
  const bool is_coded = std::ranges::any_of(
      engine.units(), [](const auto& unit) { return unit->groups().coded.gather != nullptr; });
  return is_coded ? nullptr : engine.groups().shard->common_memory();
}

/// Tells how collectives are quantized, or why none is. On rank 0.
void tell_of_quantized_links(const shard::Engine& engine) {
  const shard::ShardOptions& options = engine.options();
  if (!shard::codes_links(options) || engine.communicator().world_size() == 1) return;
  int64_t gathers = 0, reductions = 0;
  bool sends_to_all = false;
  for (const auto& unit : engine.units()) {
    const auto& [gather, reduce, gather_across, reduce_across] = unit->groups().coded;
    gathers += gather != nullptr || gather_across != nullptr;
    reductions += reduce != nullptr || reduce_across != nullptr;
    sends_to_all = sends_to_all || (reduce != nullptr && engine.mesh().ranks_of_host > 1 &&
                                    reduce->coded_parts() == reduce->world_size());
  }
  if (gathers + reductions == 0) {
    return util::log_warning(
        "fsdp.gather_dtype and fsdp.reduce_dtype have no effect: the processes that exchange parameters and "
        "gradients are on one host, as LOCAL_WORLD_SIZE says; set fsdp.quantize_links = \"all\", or leave them out");
  }
  util::log_info(concat("quantized collectives: parameters of ", gathers, " units in ", options.gather_dtype,
                        ", gradients of ", reductions, " units in ", options.reduce_dtype,
                        options.error_feedback ? " with error feedback" : ""));
  if (!sends_to_all) return;
  util::log_warning(
      "quantized gradients go from each process to all others, also where several are on a host, because this "
      "backend adds nothing inside a host first; fsdp.strategy = \"hybrid_shard\" with fsdp.hybrid_optimizer = "
      "\"global\" and a mesh.dcn of the number of hosts sends less between hosts");
}

}  // namespace

ShardedModel build_sharded_model(const config::Config& config, const comm::Mesh& mesh,
                                 std::shared_ptr<comm::Trace> trace, const KnownParts& known) {
  ShardedModel parts;
  const std::shared_ptr<comm::Communicator>& communicator = mesh.world();
  if (config.training.reproducible == config::Reproducible::kWorldSize) {
    require_equal_arithmetic(config, *communicator);
  }
  util::start_phase("model");
  config::Config sized = config;
  sized.mesh.context = mesh.shape().context;
  sized.mesh.model = mesh.shape().model;
  const plan::PassDevice device =
      communicator->device().is_cpu() ? plan::PassDevice::kCpu : plan::PassDevice::kOfConfig;
  parts.checkpointing = sized.activation_checkpointing = checkpointing_of(sized, mesh, device);
  sized.model.logits_mib = logits_mib_of(sized, mesh);
  parts.cut = cut_sequence(config, mesh);
  comm::agree(*communicator, "model", [&] {
    parts.model = nn::make_decoder(sized.model, at::kMeta);
    parts.layers = nn::parallelize_decoder(
        *parts.model, config.model, {.sequence_parallel = config.mesh.sequence_parallel}, mesh.model());
    if (config.lora.is_on()) parts.adapted = nn::add_lora(*parts.model, config.lora);
    parts.float8 = apply_float8(config, *parts.model, communicator->device());
    if (!known.frozen) return;
    for (at::Tensor& parameter : parts.model->parameters()) parameter.set_requires_grad(false);
  });
  util::start_phase("first weights");
  std::unique_ptr<shard::ParameterSource> of_config;
  shard::ParameterSource* weights = known.weights;
  if (weights == nullptr) {
    const auto seed = static_cast<uint64_t>(config.run.seed);
    of_config = initial_weights(config.model, seed, communicator, *parts.model);
    if (config.lora.is_on()) {
      comm::agree(*communicator, "initial adapters",
                  [&] { of_config = with_adapters(std::move(of_config), *parts.model, config.lora, seed); });
    }
    of_config = counted_weights(
        std::move(of_config), *parts.model,
        {known.progress, config.model.init_from.empty() ? "drawing weights" : "reading weights"});
    weights = of_config.get();
  }
  util::start_phase("shards");
  comm::agree_at_once(*communicator, "sharding the model", [&] {
    const shard::Materialize materialize{weights, communicator->device()};
    shard::ShardOptions options = config::shard_options(config, !communicator->device().is_cpu());
    options.parts = parts.layers;
    parts.engine = config.fsdp.front == config::Front::kSpmd
                       ? shard_by_spmd(*parts.model, options, mesh, std::move(trace), materialize)
                       : shard::fully_shard(*parts.model, options, mesh, std::move(trace), materialize);
    if (known.frozen) return;
    // Otherwise each buffer of the first step would be a separate allocation.
    util::start_phase("buffers");
    comm::CommonMemory* common = common_memory_of(*parts.engine);
    try {
      std::map<int64_t, plan::BufferShapes> own;
      auto& shapes = known.buffers != nullptr ? *known.buffers : own;
      const int64_t micro_batches = sized.training.gradient_accumulation_steps;
      if (!shapes.contains(micro_batches)) {
        shapes[micro_batches] =
            plan::buffer_shapes(sized, shard::unit_sizes(*parts.engine), common != nullptr, device);
      }
      const plan::BufferShapes& buffers = shapes.at(micro_batches);
      parts.engine->buffer_pool().reserve(buffers.own);
      if (common != nullptr) common->reserve(buffers.common);
    } catch (const util::Error& error) {
      util::log_info(concat("buffers are allocated when the first step needs them: ", error.what()));
    }
    // Applied after sharding, so that recomputed stages are inside the units and reuse their parameters.
    nn::apply_checkpointing(*parts.model, parts.checkpointing);
  });
  return parts;
}

namespace {

/// Warns about a list of patterns none of which matches: it is probably misspelt, or meant for another
/// architecture. A single pattern may match nothing ("*.bias" serves models with and without biases), unless
/// it looks misspelt.
void warn_of_patterns_without_parameters(const optim::OptimizerOptions& options,
                                         const shard::Engine& engine) {
  std::vector<std::string> names;
  for (const shard::Segment& segment : engine.segments()) names.push_back(segment.name);
  const auto check = [&](const std::string& key, const std::vector<std::string>& patterns) {
    std::vector<std::string> unmatched, misspelt;
    std::string near;
    for (const std::string& pattern : patterns) {
      if (std::any_of(names.begin(), names.end(),
                      [&](const std::string& name) { return util::matches_any(name, {pattern}); })) {
        continue;
      }
      unmatched.push_back(pattern);
      const std::string meant = util::nearest_pattern(pattern, names);
      if (meant.empty()) continue;
      misspelt.push_back(pattern);
      if (near.empty()) near = meant;
    }
    const std::vector<std::string>& told = unmatched.size() == patterns.size() ? unmatched : misspelt;
    if (told.empty()) return;
    util::log_warning(concat(key, " has no effect, because ", util::name_list(told),
                             told.size() == 1 ? " matches" : " match", " no parameter such as ",
                             names.front(), "; ",
                             near.empty() ? "correct it or take it out" : "did you mean \"" + near + "\"?"));
  };
  check("optimizer.no_decay", options.no_decay);
  if (options.name == "muon") check("optimizer.adamw_parameters", options.adamw_parameters);
  for (size_t i = 0; i < options.groups.size(); ++i) {
    check(concat("optimizer.groups, number ", i + 1), options.groups[i].pattern);
  }
}

std::string describe_adapters(const ShardedModel& parts) {
  int64_t trained = 0;
  for (const auto& segments : parts.engine->segments_by_parameter()) {
    if (segments.front().requires_grad) trained += c10::multiply_integers(segments.front().shape);
  }
  const int64_t all = shard::parameter_count(*parts.engine, *parts.model);
  return concat("lora: adapters of ", parts.adapted.size(), " linear layers are trained, ",
                util::with_commas(trained), " of ", util::with_commas(all), " parameters");
}

/// Builds the parts over all ranks of the mesh. `reports`: whether this rank logs what they are.
RunParts build_parts(const config::Config& config, const comm::Mesh& mesh, std::shared_ptr<comm::Trace> trace,
                     const KnownParts& known, bool reports) {
  constexpr const char* kGraphs = "training.cuda_graphs";
  RunParts parts;
  const bool graphs = config.training.cuda_graphs;
  if (graphs) comm::agree(*mesh.world(), kGraphs, [&] { prepare_graphs(config, mesh.world()->device()); });
  static_cast<ShardedModel&>(parts) = build_sharded_model(config, mesh, std::move(trace), known);
  if (reports) {
    warn_of_patterns_without_parameters(config.optimizer, *parts.engine);
    if (config.lora.is_on()) util::log_info(describe_adapters(parts));
    tell_of_quantized_links(*parts.engine);
    if (!parts.float8.chosen.empty()) util::log_info(describe(parts.float8, mesh.world()->device()));
  }
  if (graphs) {
    comm::agree(*mesh.world(), kGraphs, [&] {
      // Graphs are attached after the hooks that gather and free, and so inside them: hooks run between
      // graphs.
      parts.graphs =
          graph_blocks(*parts.model, *parts.engine, util::cuda_graph_pools(mesh.world()->device().index()));
      for (const auto& unit : parts.engine->units()) unit->storage().keep_gradients_in_place();
    });
  }
  util::start_phase("optimizer");
  comm::agree(*mesh.world(), "making the optimizer", [&] {
    optim::OptimizerOptions options = config.optimizer;
    options.rounding_seed = static_cast<uint64_t>(config.run.seed);
    parts.matrices = std::make_unique<optim::ShardedMatrices>(*parts.engine, options);
    parts.optimizer =
        optim::make_optimizer(options, optim::flat_parameters(*parts.engine, options), parts.matrices.get());
  });
  if (config::scales_loss(config)) parts.scaler.emplace(config.loss_scaler);
  if (config.training.may_skip_updates()) parts.guard.emplace(config.training);
  parts.objective = make_objective(config, mesh, known.weights);
  return parts;
}

}  // namespace

RunParts build_run_parts(const config::Config& config, const comm::Mesh& mesh,
                         std::shared_ptr<comm::Trace> trace, const KnownParts& known) {
  const bool is_first = mesh.world()->rank() == 0;
  if (!config.training.has_local_steps()) return build_parts(config, mesh, std::move(trace), known, is_first);
  using enum comm::MeshAxis;
  const comm::MeshShape& shape = mesh.shape();
  comm::MeshOptions of_replica = config.mesh;
  of_replica.dcn = 1;
  of_replica.data = shape.data;
  of_replica.context = shape.context;
  of_replica.model = shape.model;
  const comm::Mesh replica(of_replica, mesh.group({kData, kContext, kModel}));
  RunParts parts;
  comm::agree_at_once(*mesh.world(), "parts of the replicas",
                      [&] { parts = build_parts(config, replica, std::move(trace), known, is_first); });
  comm::agree_at_once(*mesh.world(), "outer optimizer", [&] {
    parts.outer =
        std::make_unique<optim::OuterOptimizer>(config.outer_optimizer, config.training.local_steps,
                                                *parts.engine, *parts.optimizer, mesh.group({kDcn}));
  });
  return parts;
}

std::unique_ptr<TrainStep> make_train_step(const config::Config& config, RunParts& parts,
                                           const data::BatchSource& batches,
                                           std::function<bool()> stop_requested,
                                           std::function<bool()> leave_requested) {
  const nn::ModelOptions& model = config.model;
  std::optional<uint64_t> dropout_key;
  if (model.embedding_dropout > 0 || model.attention_dropout > 0 || model.hidden_dropout > 0 ||
      (config.lora.is_on() && config.lora.dropout > 0)) {
    dropout_key = util::mix64(static_cast<uint64_t>(config.run.seed));
  }
  const TrainStep::StepParts of_step{*parts.model,
                                     *parts.engine,
                                     *parts.optimizer,
                                     batches,
                                     parts.scaler ? &*parts.scaler : nullptr,
                                     std::move(stop_requested),
                                     parts.guard ? &*parts.guard : nullptr,
                                     parts.objective};
  const StepOptions options{.gradient_accumulation_steps = config.training.gradient_accumulation_steps,
                            .loss = {.terms = {.label_smoothing = config.training.label_smoothing,
                                               .z_loss = config.training.z_loss},
                                     .function = nn::losses().get(config.training.loss, "training.loss"),
                                     .plugin_values = config.plugin_values,
                                     .cut = parts.cut,
                                     .router_aux_loss_coef = nn::aux_loss_coef(model)},
                            .counts_vary = data::counts_vary(config.data),
                            .dropout_key = dropout_key,
                            .max_grad_norm = config.training.max_grad_norm,
                            .norm_type = config.training.norm_type,
                            .clip_grad_value = config.training.clip_grad_value,
                            .no_sync = config.training.no_sync,
                            .may_read_late = !parts.engine->communicator().device().is_cpu()};
  if (parts.outer) {
    return std::make_unique<ReplicaStep>(of_step, options, parts.outer->schedule(), config.training.steps,
                                         parts.standing, std::move(leave_requested));
  }
  if (config.training.reproducible != config::Reproducible::kWorldSize) {
    return std::make_unique<TrainStep>(of_step, options);
  }
  const data::Placement place = placement(config, parts.engine->communicator());
  const SamplePlaces samples{.rank = place.rank,
                             .ranks = place.world_size,
                             .batch_is_sample = config.data.max_tokens > 0 || config.data.preference.is_on()};
  return std::make_unique<ReproducibleStep>(of_step, options, samples, std::move(leave_requested));
}

}  // namespace fsdp::train
