#pragma once

#include "shard/engine/reduce/group_reduction.h"

namespace fsdp::shard {

/// Adds a reduce-scatter among the slices, which divide the shard of a pass among themselves.
class SliceReduction final : public GroupReduction {
 public:
  using GroupReduction::GroupReduction;

  void finish_moving() override { finish_across(); }

 private:
  comm::Communicator* across() const override { return unit_.groups().across(); }

  std::unique_ptr<comm::Work> reduce_across(const Sums& sums) override {
    if (unit_.is_cut()) sums->read_across = sums->output;
    return reduce_scatter(*across(), sums, sums->output, kBetweenSlices, /*is_last=*/true);
  }
};

}  // namespace fsdp::shard
