#pragma once

// Which sample is at which position of a run: the settings that define it, and the position at which a run goes on when
// they have changed.

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "data/loading/loader.h"
#include "setup/config/config.h"

namespace fsdp::train {

/// "sampling" under "training" in a manifest: by the names of their keys, all settings that the sample at a position
/// depends on, and "samples_per_epoch" and "tokens", by which positions are converted. The files themselves are in
/// data_record().
nlohmann::json sampling_record(const config::Config& config, const data::TrainLoader& loader);

struct ResumedPosition {
  int64_t samples_seen = 0;
  std::string note{};    ///< what has changed and what becomes of the position; "": nothing has changed
  bool is_exact = true;  ///< whether no sample is repeated or skipped
};

/// The position in the `present` order of samples of a run that resumes from `record`, "training" of a manifest.
/// Another length of rows, limit of tokens or shuffling is converted where that repeats and skips no sample: at the end
/// of an epoch, or between rows of consecutive tokens. Throws Error(kUsage) for changes that cannot be converted and
/// for all other changes, unless they are allowed (data.allow_changed): the run then goes on after the same part of an
/// epoch. Settings that the record lacks are not compared; the length of rows of a checkpoint without "sampling"
/// follows from its counts of samples and tokens. `where` names the checkpoint.
ResumedPosition resumed_position(const nlohmann::json& record, const nlohmann::json& present, bool may_differ,
                                 const std::string& where);

}  // namespace fsdp::train
