#pragma once

// UnitMemory: what the units of a model take and give back of tensor memory in a step, as numbers: gathered
// parameters, gradients before and after their reduction. It does what shard::Engine, shard::Unit and
// shard::BufferPool do, in their order, on sizes; the model's walk (plan/activations.h) tells it where
// in the pass it is. Whoever changes when those take or free memory changes it here too;
// tests/train/plan_test.cpp holds the one against the other.

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "config/config.h"
#include "plan/activations.h"
#include "plan/memory_tape.h"
#include "shard/execution_order.h"
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

class UnitMemory {
 public:
  struct Options {
    CollectiveTiming timing = CollectiveTiming::kAtOnce;
    bool count_moved = true;  ///< gradients that fsdp.move_grads_to_cpu moves to host memory
    bool common = false;      ///< all-gathers go to memory that the ranks have in common
  };

  UnitMemory(const config::Config& config, const std::vector<shard::UnitSizes>& units, MemoryTape& tape,
             const Options& options);

  /// To be given to the walk of each micro-batch. `sync`: whether this one reduces gradients.
  StageEvents events(bool sync);
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
    bool in_use = false;  ///< gathered, or being gathered
    bool has_gradients = false;
    bool has_shard_gradient = false;
    std::optional<PoolMemory::Place> parameters = {}, gradients = {};
    size_t gathered = 0, sent = 0, reduced = 0;  ///< places in the queue to wait for
  };

  void forward_begins(size_t index);
  void forward_ends(size_t index);
  void backward_begins(size_t index);
  void backward_ends(size_t index);
  void whole_backward_ends();

  void start_gather(Unit& unit);
  void finish_gather(Unit& unit);
  void gather_ahead();
  void release_gathered_ahead();
  void release_kept_unit(const Unit* except);
  void reshard(Unit& unit);
  PoolMemory& gather_memory(const Unit& unit);
  void attach_gradients(Unit& unit);
  void prefetch_backward(size_t index);
  void reduce(Unit& unit);
  void finish_sending(Unit& unit);
  void add_to_shard_gradient(Unit& unit);
  int64_t counted_gradient_bytes(const Unit& unit) const;

  /// The communication stream: what is issued is done in order. Returns the place to wait for.
  size_t issue(std::function<void()> task);
  void wait(size_t place);
  void progress();

  template <typename Body>
  void at(const std::string& path, const Body& body);

  const config::Config& config_;
  const shard::ShardOptions shard_options_;
  MemoryTape& tape_;
  const Options options_;
  PoolMemory pool_, common_;
  std::vector<Unit> units_;
  size_t root_units_ = 0;
  std::map<std::string, size_t> by_path_;
  shard::ExecutionOrder order_;
  std::vector<size_t> ahead_;
  Unit* kept_ = nullptr;
  Unit* reducing_ = nullptr;
  bool in_backward_ = false, sync_ = true;
  std::deque<std::function<void()>> queue_;
  size_t issued_ = 0, done_ = 0;
};

}  // namespace fsdp::plan
