#pragma once

// UnitMemory: the tensor memory of a model's units in a step, as numbers: gathered parameters, and gradients
// before and after their reduction. It reads the schedule's commands (shard/units/schedule.h) and does with
// sizes what shard::Unit and shard::BufferPool do with buffers, while a recorded pass
// (tools/plan/recorded_pass.h) is played. tests/run/train/planned_step_test.cpp compares the sums with the
// engine's.

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "base/util/free_ranges.h"
#include "setup/config/config.h"
#include "shard/units/sample_nodes.h"
#include "shard/units/schedule.h"
#include "shard/units/unit_sizes.h"
#include "tools/plan/recorded_pass.h"
#include "tools/plan/unit_jobs.h"

namespace fsdp::plan {

/// The memory of a shard::BufferPool. The whole arena counts on the tape, including its free parts.
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

/// When collectives complete: the two extremes of a network, and between them, when a unit has computed and
/// all that it uses still exists.
enum class CollectiveTiming { kAtOnce, kBesideCompute, kWhenWaitedFor };

class UnitMemory final : private shard::CommandReader {
 public:
  struct Options {
    CollectiveTiming timing = CollectiveTiming::kAtOnce;
    bool count_moved = true;  ///< whether gradients that move_grads_to_cpu moves to host memory count
    bool common = false;      ///< whether all-gathers write to memory that the ranks share
    bool on_device = false;   ///< shard::StepFormulaOptions
    /// Bytes of temporaries of each unit's update, which in the last micro-batch follows its reduction and
    /// frees its gradient. Empty: units are updated after backward.
    std::vector<int64_t> update_temporaries = {};
  };

  UnitMemory(const config::Config& config, const std::vector<shard::UnitSizes>& units, MemoryTape& tape,
             const Options& options);

  /// Events for playing one micro-batch. `sync`: whether it reduces gradients; `is_last`: whether it is the
  /// last of the step.
  StageEvents events(bool sync, bool is_last);
  /// Frees the gradients of shards.
  void zero_gradients();
  /// The shape of the pool's arena from the second step on.
  util::Arena::Shape arena() const { return pool_.arena(); }
  /// The length of the arena that the ranks share, if they were always at the same point of the step.
  int64_t common_bytes() const { return common_.arena().length; }

 private:
  /// A communication queue runs its tasks in order; queues do not wait for each other.
  struct Queue {
    std::deque<std::function<void()>> tasks;
    size_t done = 0;
  };
  struct Place {
    size_t queue = 0, number = 0;
  };

  /// Memory that is given back with the last owner.
  using Bytes = std::shared_ptr<void>;
  struct SampleSum {
    int level = 0;
    Bytes memory = nullptr;
  };

  /// The counterpart of shard::Unit.
  struct Unit {
    const shard::UnitSizes* sizes = nullptr;
    bool has_shard_gradient = false;
    std::optional<PoolMemory::Place> parameters = {}, communication = {}, gradients = {};
    Place gathered{}, sent{}, reduced{};  ///< places in the queues to wait for
    UnitUpdate update{};
    int64_t round = 0;               ///< number of the next reduction, with sums_by_sample
    std::vector<SampleSum> sums{};   ///< sums as in shard::SampleTree, alike for each gradient
    Bytes shard_gradient = nullptr;  ///< only with sums_by_sample
  };

  void read(const shard::Command& command) override;
  void follow(Unit& unit, const shard::Command& command);

  void gather(Unit& unit);
  void reshard(Unit& unit);
  PoolMemory& gather_memory(const Unit& unit);
  void attach_gradients(Unit& unit);
  void reduce(Unit& unit);
  void add_to_shard_gradient(Unit& unit);
  void reduce_by_sample(Unit& unit);
  void add_nodes(Unit& unit, const shard::SampleRound& round, const Bytes& slots);
  int64_t counted_gradient_bytes(const Unit& unit) const;

  Place issue(size_t queue, std::function<void()> task);
  void wait(const Place& place);
  void progress();

  const bool reduce_scatter_group_;
  const int64_t rounds_;  ///< micro-batches in a step
  const std::vector<shard::UnitSizes>& sizes_;
  MemoryTape& tape_;
  const Options options_;
  PoolMemory pool_, common_;
  std::vector<Unit> units_;
  shard::Schedule schedule_;
  bool updates_ = false;  ///< whether the current pass updates units
  std::map<size_t, Queue> queues_;
};

}  // namespace fsdp::plan
