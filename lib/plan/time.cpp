#include "plan/time.h"

#include "plan/activations.h"
#include "plan/memory_tape.h"
#include "plan/unit_events.h"

namespace fsdp::plan {

TimePlan plan_time(const config::Config& config, const std::vector<shard::UnitSizes>& units,
                   const MachineSpeed& speed) {
  StepClock clock(units, speed);
  UnitEvents walk(config::shard_options(config), units, clock);
  const ActivationShape shape = activation_shape(config);
  double flops = 0;
  const auto micro_batch = [&](bool sync) {
    const TimePlan before{clock.computed(), clock.communicated(), clock.exposed(), flops};
    StageEvents events = walk.of_micro_batch(sync);
    events.computes = [&](const Products& products) {
      flops += products.flops;
      const double as_if = products.flops - (1 - 1 / kFloat8Speed) * products.flops_in_float8;
      clock.compute(as_if / speed.flops_per_second);
    };
    MemoryTape tape;
    run_micro_batch(shape, tape, events);
    return TimePlan{clock.computed() - before.compute, clock.communicated() - before.communication,
                    clock.exposed() - before.exposed, flops - before.flops};
  };
  micro_batch(true);  // from the second pass on the order of the units is known
  // Nothing is under way between micro-batches, so their times add up.
  const double others = static_cast<double>(config.training.gradient_accumulation_steps - 1);
  const TimePlan other = micro_batch(!config.training.no_sync), last = micro_batch(true);
  return {last.compute + others * other.compute, last.communication + others * other.communication,
          last.exposed + others * other.exposed, last.flops + others * other.flops};
}

}  // namespace fsdp::plan
