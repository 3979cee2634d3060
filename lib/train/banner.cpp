#include "train/banner.h"

#include "kernels/matmul.h"
#include "plan/memory.h"
#include "shard/engine_sizes.h"
#include "train/device.h"
#include "util/error.h"
#include "util/text.h"

namespace fsdp::train {

using util::concat;
using util::human_bytes;
using util::with_commas;

namespace {

/// ", products by onednn"; in bf16 nothing else than oneDNN has them but the matrix unit.
std::string products_on_cpu(const config::Config& config) {
  const kernels::Matmul matmul = kernels::matmul_by_name(config.model.matmul);
  const bool is_float = config.mixed_precision.param_dtype == "float32";
  if (!is_float && matmul != kernels::Matmul::kAmx) return "";
  return concat(", products by ", kernels::name_of(matmul),
                is_float && float32_products_are_shorter(matmul) ? " in 16 of 24 bits" : "");
}

const char* products_on_gpu() {
  return float32_products_use_tf32() ? ", float32 products in TF32" : ", float32 products in full precision";
}

/// "full_shard, bfloat16 with float32 reduction, offloaded, recomputed".
std::string how(const config::Config& config) {
  const auto& precision = config.mixed_precision;
  std::string text = config.fsdp.strategy.name();
  if (precision.param_dtype != "float32" || precision.reduce_dtype != "float32") {
    text += concat(", ", precision.param_dtype, " reduced in ", precision.reduce_dtype);
  }
  if (config.fsdp.cpu_offload) text += ", shards in host memory";
  if (config.activation_checkpointing.mode != nn::RecomputeMode::kNone) text += ", activations recomputed";
  return text;
}

/// Where one could take it for another.
std::string of_what_mfu_is_a_share(const config::Config& config) {
  if (config.training.float8 == "none") return "";
  return concat(", in ", config.mixed_precision.param_dtype, ", of which mfu is the share");
}

/// ", 2.0 GiB for the optimizer", or nothing.
std::string for_optimizer(const config::Config& config, const shard::Engine& engine) {
  const int64_t bytes = plan::optimizer_state_bytes(config.optimizer, shard::unit_sizes(engine));
  return bytes == 0 ? "" : concat(", ", human_bytes(bytes), " for the optimizer");
}

}  // namespace

std::string banner(const config::Config& config, const shard::Engine& engine, const data::TrainLoader& loader,
                   const PeakRate& peak) {
  int64_t parameters = 0, largest_unit_bytes = 0;
  for (const auto& unit : engine.units()) {
    parameters += unit->storage().layout().numel();
    largest_unit_bytes = std::max(largest_unit_bytes, unit->storage().unsharded_bytes());
  }
  const int world = engine.communicator().world_size();
  const int64_t micro_batches = config.training.gradient_accumulation_steps;
  const int64_t tokens = loader.samples_per_step() * config.data.sequence_length;
  const double epochs = static_cast<double>(loader.samples_per_step() * config.training.steps) /
                        static_cast<double>(loader.num_samples());
  const shard::StepFormula step =
      shard::step_formula(engine, {.micro_batches = micro_batches, .no_sync = config.training.no_sync});
  const int64_t sent =
      step.traffic.all_gather_bytes + step.traffic.reduce_scatter_bytes + step.traffic.all_reduce_bytes;

  std::string text = concat("run        ", config.run.name, " -> ", config.run.output_dir, "\n");
  text += concat("model      ", config.model.architecture, ", ", with_commas(parameters), " parameters\n");
  text += concat("ranks      ", world,
                 world == 1 ? " (no communication)" : concat(" over ", engine.communicator().backend_name()),
                 ", ", how(config), "; ", engine.units().size(), " units, the largest ",
                 human_bytes(largest_unit_bytes), "\n");
  const at::Device device = engine.communicator().device();
  text += concat(
      "compute    ", device.is_cpu() ? "" : device.str() + ", ", config.mixed_precision.param_dtype,
      config.training.fused_kernels ? ", fused kernels" : ", composed operations",
      device.is_cpu() ? products_on_cpu(config) : "", device.is_cpu() ? "" : products_on_gpu(),
      config.training.float8 != "none" ? concat(", linear layers in float8 (", config.training.float8, ")")
                                       : "",
      config.training.cuda_graphs ? ", blocks as CUDA graphs" : "", "; at best ",
      util::fixed(peak.flops_per_second / 1e12, 3), " TFLOP/s a rank",
      peak.is_given() ? "" : concat(" (", peak.source, ")"), of_what_mfu_is_a_share(config), "\n");
  if (config.training.label_smoothing > 0 || config.training.z_loss > 0) {
    text += concat("loss       cross-entropy with label smoothing ", config.training.label_smoothing,
                   " and z-loss ", config.training.z_loss, "; validations have neither\n");
  }
  if (config.model.attention_dropout > 0) {
    text +=
        "attention  drops weights while training, so they exist as a whole and no kernel of tiles is used\n";
  }
  text += concat("mesh       ", comm::to_string(engine.mesh()), ": ",
                 shard::describe_groups(engine.mesh(), config.fsdp.strategy), "\n");
  text += concat("shard      ", human_bytes(engine.shard_bytes()),
                 " of parameters a rank, as much for gradients", for_optimizer(config, engine), "\n");
  if (world > 1) {
    text += concat("step       sends ", human_bytes(sent), " a rank, holds at most ",
                   human_bytes(step.unsharded_bytes), " of gathered parameters and unreduced gradients\n");
  }
  text += concat("batch      ", loader.samples_per_step(), " sequences = ", with_commas(tokens),
                 " tokens a step (", world, " ranks x ", micro_batches, " micro-batches x ",
                 config.data.micro_batch_size, " sequences x ", config.data.sequence_length, " tokens)\n");
  text += concat("data       ", with_commas(loader.num_tokens()), " tokens; ", config.training.steps,
                 " steps are ");
  if (loader.sets().size() == 1) return concat(text, util::fixed(epochs, 2), " epochs");
  const int64_t samples = loader.samples_per_step() * config.training.steps;
  for (size_t set = 0; set < loader.sets().size(); ++set) {
    const data::TrainLoader::Set& each = loader.sets()[set];
    const double passes = loader.samples_of(set, samples) / static_cast<double>(each.order.num_samples());
    text += concat(set == 0 ? "" : ", ", util::fixed(passes, 2), " epochs of ", each.name);
  }
  return text;
}

}  // namespace fsdp::train
