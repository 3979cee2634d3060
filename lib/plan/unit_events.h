#pragma once

// UnitEvents: runs the schedule of a model's units (shard/schedule.h) as the walk through its stages goes
// (plan/recorded_pass.h).

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "plan/recorded_pass.h"
#include "shard/schedule.h"
#include "shard/unit_sizes.h"

namespace fsdp::plan {

class UnitEvents {
 public:
  /// `reader` gets the commands; `before_end` is called when a unit has computed. `units` outlive the object.
  UnitEvents(
      const shard::ShardOptions& options, const std::vector<shard::UnitSizes>& units,
      shard::CommandReader& reader, std::function<void()> before_end = [] {});

  /// To be given to the walk of each micro-batch. `sync`: whether this one reduces gradients.
  StageEvents of_micro_batch(bool sync);

 private:
  void backward_ends(size_t unit);

  const std::vector<shard::UnitSizes>& units_;
  std::map<std::string, size_t> by_path_;  ///< the root's path is empty
  shard::Schedule schedule_;
  std::function<void()> before_end_;
};

}  // namespace fsdp::plan
