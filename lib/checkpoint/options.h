#pragma once

#include <cstdint>
#include <string>

namespace fsdp::checkpoint {

struct CheckpointOptions {
  int64_t interval_steps = 100;  ///< save every so many steps; 0: only at the end
  bool save_at_end = true;       ///< save after the last step
  int64_t keep_last = 3;         ///< older checkpoints are deleted after a commit; 0: all are kept
  std::string kind = "sharded";  ///< "sharded"
  bool asynchronous = false;
  std::string resume =
      "auto";  ///< "auto" (the newest complete one, else start anew), "never", "latest", or a path
};

}  // namespace fsdp::checkpoint
