#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "base/util/enum_names.h"

namespace fsdp::checkpoint {

/// How a checkpoint is laid out.
enum class CheckpointKind {
  kSharded,  ///< one file per rank
  kFull,     ///< one file with whole tensors, through rank 0
};
constexpr auto enum_names(CheckpointKind) {
  return std::to_array<util::EnumName<CheckpointKind>>(
      {{CheckpointKind::kSharded, "sharded"}, {CheckpointKind::kFull, "full"}});
}

/// Whether saved checkpoints are read back and compared.
enum class VerifySaved {
  kNone,
  kBackground,  ///< compared while training continues
};
constexpr auto enum_names(VerifySaved) {
  return std::to_array<util::EnumName<VerifySaved>>(
      {{VerifySaved::kNone, "none"}, {VerifySaved::kBackground, "background"}});
}

/// When a run saves, beside its end.
enum class SaveTimes {
  kInterval,    ///< after interval_steps or interval_minutes
  kContinuous,  ///< when the previous save has ended
  kAuto,        ///< after the interval that loses the least time, by the cost of saves and the run's faults
};
constexpr auto enum_names(SaveTimes) {
  return std::to_array<util::EnumName<SaveTimes>>({{SaveTimes::kInterval, "interval"},
                                                   {SaveTimes::kContinuous, "continuous"},
                                                   {SaveTimes::kAuto, "auto"}});
}

struct CheckpointOptions {
  util::Named<SaveTimes> schedule = SaveTimes::kInterval;
  int64_t interval_steps = 100;  ///< steps between saves; 0: only at the end
  double interval_minutes = 0;   ///< minutes between the beginnings of saves; 0: interval_steps counts
  bool save_at_end = true;       ///< save after the last step
  int64_t keep_last = 3;         ///< number of newest checkpoints to keep, once a new one is complete; 0: all
  int64_t keep_every = 0;        ///< also keeps checkpoints whose step is a multiple of this; 0: none
  bool keep_best = false;        ///< also keeps the best checkpoint and links "best" to it
  util::Named<CheckpointKind> kind = CheckpointKind::kSharded;
  bool asynchronous = false;         ///< writes from copies in host memory while training continues
  std::string permissions = "0640";  ///< mode of a run's files, restricted further by the umask
  util::Named<VerifySaved> verify_saved = VerifySaved::kNone;
  /// "auto" (the newest complete checkpoint, else a new start), "never", "latest", or a path.
  std::string resume = "auto";
  /// Folder in a store of objects, "s3://bucket/runs/name", to which finished checkpoints are sent; empty:
  /// none.
  std::string upload_to{};
  /// A checkpoint of another run. If no checkpoint is resumed, training starts at step 0 from its weights.
  std::string init_from{};
  std::vector<std::string> init_only{};     ///< patterns of parameters to take from init_from; empty: all
  std::vector<std::string> init_missing{};  ///< patterns of parameters that init_from may lack
};

}  // namespace fsdp::checkpoint
