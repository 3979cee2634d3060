#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "base/util/enum_names.h"

namespace fsdp::checkpoint {

/// How a checkpoint is laid out.
enum class CheckpointKind {
  kSharded,  ///< a file per rank
  kFull,     ///< one file with whole tensors, through rank 0
};
constexpr auto enum_names(CheckpointKind) {
  return std::to_array<util::EnumName<CheckpointKind>>(
      {{CheckpointKind::kSharded, "sharded"}, {CheckpointKind::kFull, "full"}});
}

/// Whether saved checkpoints are read back and compared.
enum class VerifySaved {
  kNone,
  kBackground,  ///< while training goes on
};
constexpr auto enum_names(VerifySaved) {
  return std::to_array<util::EnumName<VerifySaved>>(
      {{VerifySaved::kNone, "none"}, {VerifySaved::kBackground, "background"}});
}

struct CheckpointOptions {
  int64_t interval_steps = 100;  ///< steps between saves; 0: only at the end
  bool save_at_end = true;       ///< save after the last step
  int64_t keep_last = 3;         ///< older checkpoints are deleted after a commit; 0: all are kept
  int64_t keep_every = 0;        ///< also keeps those whose step is a multiple; 0: none
  bool keep_best = false;        ///< also keeps the best one, marked as "best"
  util::Named<CheckpointKind> kind = CheckpointKind::kSharded;
  bool asynchronous = false;         ///< write beside training, from copies in host memory
  std::string permissions = "0640";  ///< of the files of a run, restricted further by the umask
  util::Named<VerifySaved> verify_saved = VerifySaved::kNone;
  std::string resume =
      "auto";  ///< "auto" (the newest complete one, else start anew), "never", "latest", or a path
  /// A checkpoint of another run: where nothing is resumed, training starts at step 0 from its weights.
  std::string init_from;
  std::vector<std::string> init_only{};     ///< patterns of the parameters taken from it; none: all
  std::vector<std::string> init_missing{};  ///< patterns of the parameters that it may lack
};

}  // namespace fsdp::checkpoint
