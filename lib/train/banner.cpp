#include "train/banner.h"

#include "util/error.h"
#include "util/text.h"

namespace fsdp::train {

using util::concat;
using util::human_bytes;
using util::with_commas;

std::string banner(const config::Config& config, const shard::Engine& engine,
                   const data::TrainLoader& loader) {
  int64_t parameters = 0, largest_unit_bytes = 0;
  for (const auto& unit : engine.units()) {
    parameters += unit->storage().layout().numel();
    largest_unit_bytes = std::max(largest_unit_bytes, unit->storage().unsharded_bytes());
  }
  int world = engine.communicator().world_size();
  int64_t tokens = loader.samples_per_step() * config.data.sequence_length;
  double epochs = static_cast<double>(loader.samples_per_step() * config.training.steps) /
                  static_cast<double>(loader.num_samples());
  return concat("run        ", config.run.name, " -> ", config.run.output_dir, "\n", "model      ",
                config.model.architecture, ", ", with_commas(parameters), " parameters\n", "ranks      ",
                world,
                world == 1 ? " (no communication)" : concat(" over ", engine.communicator().backend_name()),
                ", ", config.fsdp.strategy, ", ", engine.units().size(), " units, the largest ",
                human_bytes(largest_unit_bytes), "\n", "shard      ", human_bytes(engine.shard_bytes()),
                " of parameters a rank, as much for gradients",
                config.optimizer.name == "adamw" ? ", twice as much for the optimizer" : "", "\n",
                "batch      ", loader.samples_per_step(), " sequences = ", with_commas(tokens),
                " tokens a step (", world, " ranks x ", config.training.gradient_accumulation_steps,
                " micro-steps x ", config.data.micro_batch_size, " sequences x ", config.data.sequence_length,
                " tokens)\n", "data       ", with_commas(loader.num_tokens()), " tokens; ",
                config.training.steps, " steps are ", util::fixed(epochs, 2), " epochs");
}

}  // namespace fsdp::train
