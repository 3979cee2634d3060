#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace fsdp::checkpoint {

struct CheckpointOptions {
  int64_t interval_steps = 100;       ///< save every so many steps; 0: only at the end
  bool save_at_end = true;            ///< save after the last step
  int64_t keep_last = 3;              ///< older checkpoints are deleted after a commit; 0: all are kept
  int64_t keep_every = 0;             ///< each whose step is a multiple of it is kept besides; 0: none
  bool keep_best = false;             ///< also the one with the lowest validation loss, as "best"
  std::string kind = "sharded";       ///< "sharded" (a file a rank) or "full" (one file with whole tensors)
  bool asynchronous = false;          ///< write beside training, from copies in host memory
  std::string permissions = "0640";   ///< of the files of a run, less what the umask takes away
  std::string verify_saved = "none";  ///< "none", or "background": what was saved is read back and compared
  std::string resume =
      "auto";  ///< "auto" (the newest complete one, else start anew), "never", "latest", or a path
  /// A checkpoint of another run: where nothing is resumed, training starts at step 0 from its weights.
  std::string init_from;
  std::vector<std::string> init_only{};     ///< patterns of the parameters that it gives; none: all
  std::vector<std::string> init_missing{};  ///< patterns of the parameters that it may lack
};

}  // namespace fsdp::checkpoint
