#pragma once

#include <vector>

#include "shard/engine/reduce/group_reduction.h"
#include "shard/engine/reduce/sample_tree.h"

namespace fsdp::shard {

class Engine;

/// Sums along a fixed tree over the samples of a step (sample_tree.h). The shard's gradient appears after the
/// last reduction of the step. On the CPU only.
class SampleReduction final : public GroupReduction {
 public:
  using GroupReduction::GroupReduction;

  /// The next reductions are those of a step. `begun`: the sums of the leaves before step.span.first.
  void begin(const SampleStep& step, SampleSums begun = {});
  void start(Reach reach) override;

  /// The sums after the newest reduction, unless that was the last, and after up to kSumsBefore before it,
  /// oldest first. Requires: SampleStep::may_break_off, and reset().
  std::vector<SampleSums> begun_sums() const;
  /// Whether none of the step's reductions is missing, unless all are.
  bool has_all_rounds() const { return round_ == 0 || round_ == step_.rounds; }

 private:
  SampleRound next_round(int64_t gradients);
  comm::Communicator* across() const override { return unit_.groups().replicate.get(); }
  void reduce_slots_across(GradientSums& sums, const SampleRound& round);
  void add_nodes(const GradientSums& sums, const SampleRound& round);

  SampleStep step_;
  int64_t round_ = 0;  ///< number of reductions of the step so far
  SampleSums sums_;    ///< sums of the reductions that have ended
  /// Sums before the newest of them, oldest first. When a peer hangs, ranks end in different rounds: a
  /// reduction that waits for the peer holds up those behind it, while ranks whose counterparts still answer
  /// go on.
  std::vector<SampleSums> before_;
  static constexpr size_t kSumsBefore = 3;
};

/// Begins a step with ShardOptions::sums_by_sample, after Engine::zero_gradients(): the micro-batches to
/// come. `begun`: of each unit the sums of the leaves before; may be empty if there are none.
void begin_sample_sums(Engine& engine, const SampleStep& step, std::vector<SampleSums> begun = {});
/// Returns, after a step with SampleStep::may_break_off that has failed, each unit's
/// SampleReduction::begun_sums(). Resets the engine. Not collective.
std::vector<std::vector<SampleSums>> begun_sample_sums(Engine& engine);
/// Throws Error(kUsage) if a unit had gradients in some micro-batches of the step only.
void require_all_sample_sums(const Engine& engine);

}  // namespace fsdp::shard
