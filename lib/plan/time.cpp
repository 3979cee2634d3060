#include "plan/time.h"

#include "plan/memory_tape.h"
#include "plan/unit_events.h"

namespace fsdp::plan {

TimePlan plan_time(const config::Config& config, const std::vector<shard::UnitSizes>& units,
                   const MachineSpeed& speed, const RecordedPass& pass) {
  StepClock clock(units, speed);
  UnitEvents walk(config::shard_options(config), units, clock);
  double flops = 0, flops_in_float8 = 0;
  const auto micro_batch = [&](bool sync) {
    const TimePlan before{clock.computed(), clock.communicated(), clock.exposed(), flops, flops_in_float8};
    StageEvents events = walk.of_micro_batch(sync);
    events.computes = [&](const Products& products) {
      flops += products.flops;
      flops_in_float8 += products.flops_in_float8;
      const double as_if = products.flops - (1 - 1 / kFloat8Speed) * products.flops_in_float8;
      clock.compute(as_if / speed.flops_per_second);
    };
    MemoryTape tape;
    pass.play(tape, events);
    return TimePlan{clock.computed() - before.compute, clock.communicated() - before.communication,
                    clock.exposed() - before.exposed, flops - before.flops,
                    flops_in_float8 - before.flops_in_float8};
  };
  micro_batch(true);  // from the second pass on the order of the units is known
  // Nothing is under way between micro-batches, so their times add up.
  const double others = static_cast<double>(config.training.gradient_accumulation_steps - 1);
  const TimePlan other = micro_batch(!config.training.no_sync), last = micro_batch(true);
  return {last.compute + others * other.compute, last.communication + others * other.communication,
          last.exposed + others * other.exposed, last.flops + others * other.flops,
          last.flops_in_float8 + others * other.flops_in_float8};
}

}  // namespace fsdp::plan
