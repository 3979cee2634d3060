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

  util::Arena::Allocation take(int64_t bytes, util::Arena::Sort sort);
  void give_back(const util::Arena::Allocation& place);
  util::Arena::Shape arena() const { return places_.shape(); }

 private:
  MemoryTape& tape_;
  util::Arena places_;
};

/// When collectives complete: the two extremes of a network, and between them, when a unit has computed and
/// all that it uses still exists.
enum class CollectiveTiming { kAtOnce, kBesideCompute, kWhenWaitedFor };

struct UnitMemoryOptions {
  CollectiveTiming timing = CollectiveTiming::kAtOnce;
  bool count_moved = true;  ///< whether gradients that move_grads_to_cpu moves to host memory count
  bool common = false;      ///< whether all-gathers write to memory that the ranks share
  bool on_device = false;   ///< shard::StepFormulaOptions
  /// Bytes of temporaries of each unit's update, which in the last micro-batch follows its reduction and
  /// frees its gradient. Empty: units are updated after backward.
  std::vector<int64_t> update_temporaries = {};
};

class UnitMemory final : private shard::CommandReader {
 public:
  UnitMemory(const config::Config& config, const Units& units, MemoryTape& tape,
             const UnitMemoryOptions& options);

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
  struct QueuedTask {
    size_t queue = 0, number = 0;
  };

  /// Memory that is given back with the last owner.
  using HeldBytes = std::shared_ptr<void>;
  struct SampleSum {
    int level = 0;
    HeldBytes memory = nullptr;
  };

  /// The counterpart of shard::Unit.
  struct HeldUnit {
    const shard::UnitSizes* sizes = nullptr;
    bool has_shard_gradient = false;
    std::optional<util::Arena::Allocation> parameters = {}, communication = {}, gradients = {};
    QueuedTask gathered{}, sent{}, reduced{};  ///< places in the queues to wait for
    UnitUpdate update{};
    int64_t round = 0;                   ///< number of the next reduction, with sums_by_sample
    std::vector<SampleSum> sums{};       ///< sums as in shard::SampleTree, alike for each gradient
    HeldBytes shard_gradient = nullptr;  ///< only with sums_by_sample
  };

  void read(const shard::Command& command) override;
  void follow(HeldUnit& unit, const shard::Command& command);

  void gather(HeldUnit& unit);
  void reshard(HeldUnit& unit);
  PoolMemory& gather_memory(const HeldUnit& unit);
  void attach_gradients(HeldUnit& unit);
  void reduce(HeldUnit& unit);
  void add_to_shard_gradient(HeldUnit& unit);
  void reduce_by_sample(HeldUnit& unit);
  void add_nodes(HeldUnit& unit, const shard::SampleRound& round, const HeldBytes& slots);
  int64_t counted_gradient_bytes(const HeldUnit& unit) const;

  QueuedTask issue(size_t queue, std::function<void()> task);
  void wait(const QueuedTask& task);
  void progress();

  const bool reduce_scatter_group_;
  const int64_t rounds_;  ///< micro-batches in a step
  const Units& sizes_;
  MemoryTape& tape_;
  const UnitMemoryOptions options_;
  PoolMemory pool_, common_;
  std::vector<HeldUnit> units_;
  shard::Schedule schedule_;
  bool updates_ = false;  ///< whether the current pass updates units
  std::map<size_t, Queue> queues_;
};

}  // namespace fsdp::plan
