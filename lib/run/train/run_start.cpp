#include "run/train/run_start.h"

#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <ATen/ops/empty.h>
#include <torch/headeronly/version.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <thread>
#include <vector>

#include "base/util/clock.h"
#include "base/util/error.h"
#include "base/util/hash.h"
#include "base/util/regular_file.h"
#include "base/util/system.h"
#include "base/util/text.h"
#include "base/util/version.h"
#include "model/families/families.h"
#include "model/families/objectives.h"
#include "model/kernels/flash_attention.h"
#include "model/kernels/matmul.h"
#include "setup/config/checks.h"
#include "setup/config/load.h"
#include "setup/config/print.h"
#include "shard/engine/engine_sizes.h"
#include "tools/plan/memory.h"
#include "tools/plan/unit_memory.h"

namespace fsdp::train {

using util::human_bytes;
using util::with_commas;

namespace {

using nlohmann::json;

constexpr uint64_t kSeed = 0x66736470;
constexpr size_t kHashedBytes = 1 << 16;

/// Returns the size and a hash of the beginning, which are enough to detect a different file.
json file_mark(const std::string& path) {
  const std::string begin = util::read_beginning(path, kHashedBytes);
  std::error_code error;
  auto bytes = std::filesystem::file_size(path, error);
  // A file that cannot be read is reported when it is opened.
  return error ? json(nullptr) : json{bytes, util::hash_of(kSeed, begin)};
}

json file_marks(const std::vector<std::string>& paths) {
  json marks = json::array();
  for (const std::string& path : paths) marks.push_back(file_mark(path));
  return marks;
}

/// Returns the config without the paths of files, which may differ among hosts; contents are compared apart.
std::string comparable_config(config::Config config) {
  config.data.train = {"files"};
  config.data.validation.clear();
  config.model.init_from.clear();
  config.lora.init_from.clear();
  // A reference from model.init_from needs a path to be complete.
  const nn::Objective* objective = nn::objectives().find(config.training.objective);
  const bool has_model = objective != nullptr && objective->has_reference &&
                         config::reference_source(config) == nn::ReferenceSource::kModel;
  config.preference.reference_model = has_model ? "files" : "";
  config.model.init_unused.clear();  // a part of init_from that changes no weight
  return config::to_toml(config);
}

std::string difference(const json& first, const json& other) {
  if (first["version"] != other["version"]) {
    return concat("version of the toolkit: ", first["version"].dump(), " -> ", other["version"].dump());
  }
  if (first["config"] != other["config"]) {
    auto changes = config::differing_keys(
        config::parse_config(first["config"].get<std::string>(), "rank 0's config"),
        config::parse_config(other["config"].get<std::string>(), "another rank's config"));
    return changes.empty() ? "the config" : util::join(changes, "; ");
  }
  for (const char* key : {"data.train", "data.validation"}) {
    if (first[key] != other[key]) return concat("the contents of the files of ", key);
  }
  return {};
}

}  // namespace

void require_same_run(const config::Config& config, comm::Communicator& communicator) {
  if (communicator.world_size() == 1) return;
  json mine = {{"version", util::version()},
               {"config", comparable_config(config)},
               {"data.train", file_marks(config.data.train)},
               {"data.validation", file_marks(config.data.validation)},
               {"host", util::host_name()}};
  const char* const kPurpose = "comparison of the ranks";
  const std::string own = mine.dump(-1, ' ', false, json::error_handler_t::replace);
  const int rank = communicator.rank();
  // Each rank compares itself with rank 0: in a world of thousands the texts of all would be gigabytes.
  const std::string first_text = comm::first_text(communicator, rank == 0 ? own : "", {.unit = kPurpose});
  comm::agree(communicator, kPurpose, [&] {
    const json first = json::parse(first_text);
    const std::string what = difference(first, json::parse(own));
    if (what.empty()) return;
    fail(ErrorKind::kUsage, "all ranks must have the same program, config and data, but rank ", rank, " on ",
         util::host_name(), " differs from rank 0 on ", first["host"].get<std::string>(), " in ", what,
         "; start all processes alike");
  });
}

namespace {

/// Returns ", products by onednn" on a CPU; in bf16 only for the matrix unit, whose only alternative is
/// oneDNN.
std::string products(const config::Config& config, const at::Device& device) {
  if (!device.is_cpu()) {
    return concat(", float32 products in ", float32_products_use_tf32() ? "TF32" : "full precision");
  }
  const kernels::Matmul matmul = kernels::matmul_by_name(config.model.matmul.name());
  const bool is_float = config.mixed_precision.param_dtype == util::FloatType::kFloat32;
  if (!is_float && matmul != kernels::Matmul::kAmx) return "";
  return concat(", products by ", kernels::name_of(matmul),
                is_float && float32_products_are_shorter(matmul) ? " in 16 of 24 bits" : "");
}

/// Returns ", attention by cuDNN kernels" on a GPU: libtorch chooses kernels by GPU, type and shapes.
std::string attention(const config::Config& config, const comm::MeshShape& mesh, const at::Device& device) {
  const nn::ModelOptions& model = config.model;
  const bool is_built_in = nn::is_built_in_architecture(model.architecture);
  if (device.is_cpu() || !is_built_in || model.attention_dropout > 0) return "";
  if (model.attn_logit_softcapping > 0) return ", attention by matrix products, for its soft cap";
  at::Tensor one =
      at::empty({1, 1, 1, nn::head_width(model)},
                at::TensorOptions(util::scalar_type(config.mixed_precision.param_dtype)).device(device));
  one.requires_grad_(true);
  const auto heads = [&](int64_t count) {
    return one.expand({config.data.micro_batch_size, config.data.sequence_length, count, one.size(3)});
  };
  const bool grouped = one.scalar_type() != at::kFloat;  // model/nn/attention.cpp repeats others
  const at::Tensor q = heads(model.num_attention_heads),
                   k = heads(grouped ? nn::key_value_heads(model) : model.num_attention_heads);
  if (mesh.context > 1) {
    return kernels::can_use_flash_attention(q, k, k) ? ", attention in blocks by flash kernels"
                                                     : ", attention in blocks by matrix products";
  }
  if (config.data.documents != data::DocumentTreatment::kMask) {
    return concat(", attention by ", kernels::name_of_attention(q, k, k), " kernels");
  }
  return kernels::can_use_flash_attention(q, k, k) ? ", attention of all documents by one flash kernel"
                                                   : concat(", attention document by document by ",
                                                            kernels::name_of_attention(q, k, k), " kernels");
}

/// Returns "full_shard, bfloat16 with float32 reduction, offloaded, recomputed".
std::string how(const config::Config& config) {
  const auto& precision = config.mixed_precision;
  std::string text = config.fsdp.strategy.name();
  if (config.fsdp.hybrid_optimizer == shard::HybridOptimizer::kGlobal) text += " with a global optimizer";
  if (precision.param_dtype != util::FloatType::kFloat32 ||
      precision.reduce_dtype != util::FloatType::kFloat32) {
    text += concat(", ", precision.param_dtype, " reduced in ", precision.reduce_dtype);
  }
  if (config.fsdp.param_storage != util::FloatType::kFloat32) {
    text += concat(", shards in ", config.fsdp.param_storage, " without master weights");
  }
  if (config.fsdp.cpu_offload) text += ", shards in host memory";
  if (config.activation_checkpointing.mode != nn::RecomputeMode::kNone) text += ", activations recomputed";
  const bool may_move = config.activation_checkpointing.mode == nn::RecomputeMode::kOffload;
  if (may_move && config.training.device != config::DeviceChoice::kCpu) text += " or in host memory";
  return text;
}

/// Names the type to whose peak mfu is relative, which with float8 could be taken for the peak of float8.
std::string base_of_mfu(const config::Config& config) {
  if (config.training.float8 == config::Float8Recipe::kNone) return "";
  return concat(", in ", config.mixed_precision.param_dtype, ", to which mfu is relative");
}

/// Returns "as much", or "2.0 GiB".
std::string for_gradients(const shard::Engine& engine) {
  int64_t bytes = 0;
  for (const shard::UnitSizes& unit : shard::unit_sizes(engine)) {
    bytes += unit.shard_gradient_bytes();
  }
  return bytes == engine.shard_bytes() ? "as much" : human_bytes(bytes);
}

/// Returns ", 2.0 GiB for the optimizer", or nothing.
std::string for_optimizer(const config::Config& config, const shard::Engine& engine) {
  const int64_t bytes = plan::optimizer_state_bytes(config.optimizer, shard::unit_sizes(engine));
  return bytes == 0 ? "" : concat(", ", human_bytes(bytes), " for the optimizer");
}

/// Returns the line of an objective other than training.loss alone.
std::string objective_line(const config::Config& config) {
  const nn::Objective& objective = nn::objectives().get(config.training.objective, "training.objective");
  if (objective.has_teacher) {
    const nn::DistillationOptions& options = config.distillation;
    const bool is_stored = options.teacher == nn::TeacherSource::kStored;
    return concat("objective  ", config.training.objective, ": beta ", options.beta, ", temperature ",
                  options.temperature, ", alpha ", options.alpha, ", ",
                  options.top_k > 0 ? concat("the ", options.top_k, " likeliest tokens") : "all tokens",
                  " of ", is_stored ? "stored files" : options.teacher_model, "\n");
  }
  if (objective.rows == nn::ObjectiveRows::kTexts) return "";
  using enum nn::ReferenceSource;
  const auto source = config::reference_source(config);
  const char* reference = source == kStored ? "stored files"
                          : source == kBase ? "the model without adapters"
                                            : "a second model";
  return concat("objective  ", config.training.objective, ": beta ", config.preference.beta,
                objective.has_reference ? concat(", compared with ", reference) : "", "\n");
}

}  // namespace

std::string banner(const config::Config& config, const ShardedModel& parts, const data::TrainLoader& loader,
                   const PeakRate& peak, const RunPosition& position) {
  const shard::Engine& engine = *parts.engine;
  int64_t largest_unit_bytes = 0;
  for (const auto& unit : engine.units()) {
    largest_unit_bytes = std::max(largest_unit_bytes, unit->storage().unsharded_bytes());
  }
  const int world = engine.communicator().world_size();
  const comm::MeshShape& mesh = engine.mesh();
  const int together = mesh.context * mesh.model;
  const int64_t rows_at_once = config.data.max_tokens > 0 ? 1 : config.data.micro_batch_size,
                all_row_ranks = loader.samples_per_micro_step() / rows_at_once,
                replicas = all_row_ranks / mesh.row_ranks();  // of training.local_steps
  const std::string row_ranks =
      concat(all_row_ranks, together > 1 ? concat(" groups of ", together) : "", " ranks");
  const int64_t micro_batches = config.training.gradient_accumulation_steps;
  const int64_t tokens = loader.samples_per_step() * config.data.sequence_length;
  const int64_t samples =
      position.samples_seen + loader.samples_per_step() * (config.training.steps - position.step);
  const shard::StepFormula step =
      shard::step_formula(engine, {.micro_batches = micro_batches, .no_sync = config.training.no_sync});
  const int64_t sent = step.traffic.payload();  // no unit shifts

  std::string text = concat("run        ", config.run.name, " -> ", config.run.output_dir, "\n");
  text += concat("model      ", config.model.architecture, ", ",
                 with_commas(shard::parameter_count(engine, *parts.model)), " parameters\n");
  text += concat("ranks      ", replicas > 1 ? concat(replicas, " replicas of ") : "", world,
                 world == 1 ? " (no communication)" : concat(" over ", engine.communicator().backend_name()),
                 ", ", how(config), "; ", engine.units().size(), " units, the largest ",
                 human_bytes(largest_unit_bytes), "\n");
  const at::Device device = engine.communicator().device();
  text +=
      concat("compute    ", device.is_cpu() ? "" : device.str() + ", ", config.mixed_precision.param_dtype,
             config.training.fused_kernels ? ", fused kernels" : ", composed operations",
             products(config, device), attention(config, mesh, device),
             config.training.float8 != config::Float8Recipe::kNone
                 ? concat(", linear layers in float8 (", config.training.float8, ")")
                 : "",
             config.training.cuda_graphs ? ", blocks as CUDA graphs" : "",
             config.training.deterministic ? ", deterministic kernels only" : "", "; at best ",
             util::fixed(peak.flops_per_second / 1e12, 3), " TFLOP/s a rank",
             peak.is_given() ? "" : concat(" (", peak.source, ")"), base_of_mfu(config), "\n");
  if (config.training.label_smoothing > 0 || config.training.z_loss > 0) {
    text += concat("loss       cross-entropy with label smoothing ", config.training.label_smoothing,
                   " and z-loss ", config.training.z_loss, "; validation uses neither\n");
  }
  text += objective_line(config);
  if (const double weight = nn::aux_loss_coef(config.model); weight > 0) {
    text += concat("experts    ", config.model.num_experts_per_tok, " of ", config.model.num_experts,
                   " for each token; the loss that balances them counts ", weight, ", in training alone\n");
  }
  if (config.model.attention_dropout > 0) {
    text +=
        "attention  drops weights while training, so they exist as a whole and no kernel of tiles is used\n";
  }
  text +=
      concat("mesh       ", comm::to_string(engine.mesh()), ": ",
             shard::describe_groups(engine.mesh(), config.fsdp.strategy, config.fsdp.hybrid_optimizer), "\n");
  if (mesh.context > 1) {
    const bool rings = config.mesh.context_attention == comm::ContextAttention::kRing;
    text += concat("context    each sequence over ", mesh.context, " ranks, ",
                   with_commas(config.data.sequence_length / mesh.context),
                   " tokens a rank in two chunks; keys and values ",
                   rings ? "go round a ring" : "are gathered in each layer", "\n");
  }
  if (mesh.model > 1) {
    text += concat(
        "model      each layer over ", mesh.model, " ranks, ",
        with_commas(config.model.num_attention_heads / mesh.model), " heads a rank; between layers ",
        config.mesh.sequence_parallel ? "the sequence is cut" : "activations are whole on every rank", "\n");
  }
  const int64_t beside = engine.source_bytes();
  text += concat("shard      ", human_bytes(engine.shard_bytes()), " of parameters a rank, ",
                 beside > 0 ? concat(human_bytes(beside), " of copies that gathers send, ") : "",
                 for_gradients(engine), " for gradients", for_optimizer(config, engine), "\n");
  if (world > 1) {
    text += concat("step       sends ", human_bytes(sent), " a rank, holds at most ",
                   human_bytes(step.unsharded_bytes), " of gathered parameters and unreduced gradients\n");
  }
  if (config.data.max_tokens > 0) {
    text += concat("batch      ", loader.samples_per_step(), " batches of at most ",
                   with_commas(config.data.max_tokens), " tokens a step (", row_ranks, " x ", micro_batches,
                   " micro-batches)\n");
  } else {
    text += concat("batch      ", loader.samples_per_step(), " sequences = ", with_commas(tokens),
                   " tokens a step (", row_ranks, " x ", micro_batches, " micro-batches x ",
                   config.data.micro_batch_size, " sequences x ", config.data.sequence_length, " tokens)\n");
  }
  text += "data       ";
  if (loader.num_tokens() > 0) text += concat(with_commas(loader.num_tokens()), " tokens; ");
  text += concat(config.training.steps, " steps are ");
  for (size_t set = 0; set < loader.sets().size(); ++set) {
    const std::string& name = loader.sets()[set].name;
    const double read = loader.samples_of(set, samples);
    const auto pass = loader.known_samples(set);
    text += set == 0 ? "" : ", ";
    // A text that is tokenized ahead of the step has as many samples as its first pass will show.
    text += pass ? concat(util::fixed(read / static_cast<double>(*pass), 2), " epochs")
                 : concat(with_commas(std::llround(read)), " samples of texts");
    if (!name.empty()) text += concat(pass ? " of " : ": ", name);
  }
  return text;
}

nlohmann::ordered_json run_environment(const comm::Communicator& communicator, const PeakRate& peak) {
  return {{"fsdp", util::version()},
          {"libtorch", TORCH_VERSION},
          {"started", util::utc_text()},
          {"ranks", communicator.world_size()},
          {"communication", communicator.backend_name()},
          {"host", util::host_name()},
          {"cpu", util::line_value("/proc/cpuinfo", "model name").value_or("unknown")},
          {"cpu_instructions", at::get_cpu_capability()},
          {"cores", std::thread::hardware_concurrency()},
          {"threads_a_rank", at::get_num_threads()},
          {"memory", util::human_bytes(::sysconf(_SC_PHYS_PAGES) * ::sysconf(_SC_PAGE_SIZE))},
          {"peak_tflops_a_rank", peak.flops_per_second / 1e12},
          {"peak_tflops_source", peak.source}};
}

}  // namespace fsdp::train
