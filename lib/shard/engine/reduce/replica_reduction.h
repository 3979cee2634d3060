#pragma once

#include "shard/engine/reduce/group_reduction.h"

namespace fsdp::shard {

/// Adds an all-reduce among the ranks that hold the same shard. Without it, results are added up as sums over
/// some of the ranks, which the next all-reduce takes in.
class ReplicaReduction final : public GroupReduction {
 public:
  using GroupReduction::GroupReduction;

 private:
  comm::Communicator* across() const override { return unit_.groups().across(); }

  std::unique_ptr<comm::Work> reduce_across(const Sums& sums) override {
    if (unit_.storage().gradient().is_partial()) {
      across()->enqueue([this, sums] {
        sums->read_across = unit_.storage().gradient().take_partial();
        sums->output.add_(sums->read_across);
      });
    }
    unit_.count({.all_reduces = 1, .all_reduce_bytes = across()->link_bytes_of_all_reduce(sums->output)});
    return across()->all_reduce(sums->output, comm::ReduceOp::kSum,
                                {.unit = unit_.name(), .pass = "backward"});
  }

  void add(GradientSums& sums, Reach reach) override {
    if (reach == Reach::kSlice) return unit_.storage().gradient().add_partial(sums.output);
    GroupReduction::add(sums, reach);
  }
};

}  // namespace fsdp::shard
