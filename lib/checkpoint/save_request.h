#pragma once

// What a save is asked for and what it leaves; the same for every kind of checkpoint.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "checkpoint/folders.h"

namespace fsdp::checkpoint {

/// A checkpoint that is to be written.
struct SaveRequest {
  std::filesystem::path root;  ///< the run's output folder, shared by all ranks; the step's folder goes in it
  int64_t step = 0;            ///< optimizer steps done
  std::string layout;          ///< of the shards: "flat" or "per_parameter"
  nlohmann::json training{};   ///< the trainer's own: sample position, seed, ...; rank 0's counts
  nlohmann::json model{};      ///< the model's config with Hugging Face's keys; rank 0's counts
  Retention retention{};       ///< which older checkpoints stay in `root` once this one is complete
  /// Called by a rank that writes a file, in the thread that does, when its data is there under a temporary
  /// name and nothing is synced yet. May be empty.
  std::function<void()> in_the_middle{};
};

/// A complete checkpoint. What became of the older ones is known on rank 0 only.
struct SavedCheckpoint {
  std::filesystem::path folder;
  std::vector<std::filesystem::path> removed{};  ///< older checkpoints
  std::string removal_failure{};                 ///< why old ones are still there; "" when none is
};

}  // namespace fsdp::checkpoint
