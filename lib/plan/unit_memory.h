#pragma once

// UnitMemory: what the units of a model take and give back of tensor memory in a step, as numbers: gathered
// parameters, gradients before and after their reduction. It reads the commands of the schedule that the engine
// executes (shard/schedule.h) and does on sizes what shard::Unit and shard::BufferPool do on buffers; the walk
// through the model (plan/recorded_pass.h) says which stage begins and ends. tests/train/plan_test.cpp compares
// the sums with what the engine takes.

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <vector>

#include "config/config.h"
#include "plan/memory_tape.h"
#include "plan/recorded_pass.h"
#include "plan/unit_events.h"
#include "shard/schedule.h"
#include "shard/unit_sizes.h"
#include "util/free_ranges.h"

namespace fsdp::plan {

/// Of a unit's shard, at rest.
int64_t shard_gradient_bytes(const config::Config& config, const shard::UnitSizes& unit);

/// The memory of a shard::BufferPool. What waits in the arena to be used again counts on the tape.
class PoolMemory {
 public:
  explicit PoolMemory(MemoryTape& tape) : tape_(tape) {}

  using Place = util::Arena::Place;
  Place take(int64_t bytes, util::Arena::Sort sort);
  void give_back(const Place& place);
  util::Arena::Shape arena() const { return places_.shape(); }

 private:
  MemoryTape& tape_;
  util::Arena places_;
};

/// When collectives are done: the two ends of what a network may do, and between them where a unit has
/// computed, while all that it uses is there.
enum class CollectiveTiming { kAtOnce, kBesideCompute, kWhenWaitedFor };

class UnitMemory final : private shard::CommandReader {
 public:
  struct Options {
    CollectiveTiming timing = CollectiveTiming::kAtOnce;
    bool count_moved = true;  ///< gradients that fsdp.move_grads_to_cpu moves to host memory
    bool common = false;      ///< all-gathers go to memory that the ranks have in common
  };

  UnitMemory(const config::Config& config, const std::vector<shard::UnitSizes>& units, MemoryTape& tape,
             const Options& options);

  /// To be given to the walk of each micro-batch. `sync`: whether this one reduces gradients.
  StageEvents events(bool sync) { return events_.of_micro_batch(sync); }
  /// The gradients of shards go.
  void zero_gradients();
  /// What the pool holds from the second step on.
  util::Arena::Shape arena() const { return pool_.arena(); }
  /// The length of the arena that the ranks have in common, were they always at the same place.
  int64_t common_bytes() const { return common_.arena().length; }

 private:
  /// A unit as shard::Unit has it.
  struct Unit {
    const shard::UnitSizes* sizes = nullptr;
    bool has_shard_gradient = false;
    std::optional<PoolMemory::Place> parameters = {}, gradients = {};
    size_t gathered = 0, sent = 0, reduced = 0;  ///< places in the queue to wait for
  };

  void read(const shard::Command& command) override;

  void gather(Unit& unit);
  void reshard(Unit& unit);
  PoolMemory& gather_memory(const Unit& unit);
  void attach_gradients(Unit& unit);
  void reduce(Unit& unit);
  void add_to_shard_gradient(Unit& unit);
  int64_t counted_gradient_bytes(const Unit& unit) const;

  /// The communication stream: what is issued is done in order. Returns the place to wait for.
  size_t issue(std::function<void()> task);
  void wait(size_t place);
  void progress();

  const config::Config& config_;
  MemoryTape& tape_;
  const Options options_;
  PoolMemory pool_, common_;
  std::vector<Unit> units_;
  UnitEvents events_;
  std::deque<std::function<void()>> queue_;
  size_t issued_ = 0, done_ = 0;
};

}  // namespace fsdp::plan
