#pragma once

// The settings that define which sample is at which position of a run, and the position at which a run goes
// on when these settings have changed.

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "data/loading/loader.h"
#include "setup/config/config.h"

namespace fsdp::train {

/// Returns "sampling" under "training" in a manifest: all settings on which the sample at a position depends,
/// by their keys, and "samples_per_epoch" and "tokens", by which positions are converted. The files
/// themselves are in data_record().
nlohmann::json sampling_record(const config::Config& config, const data::TrainLoader& loader);

struct ResumedPosition {
  int64_t samples_seen = 0;
  std::string note{};    ///< the changes and their effect on the position; "": nothing has changed
  bool is_exact = true;  ///< whether no sample is repeated or skipped
};

/// Returns the position in the `present` order of samples of a run that resumes from `record`, "training" of
/// a manifest. A change of the length of rows, of the limit of tokens or of shuffling is converted if that
/// repeats and skips no sample: at the end of an epoch, or between rows of consecutive tokens. Throws
/// Error(kUsage) for all other changes, unless they are allowed (data.allow_changed): the run then goes on
/// after the same part of an epoch. Settings that the record lacks are not compared; the length of rows of a
/// checkpoint without "sampling" follows from its counts of samples and tokens. `where` names the checkpoint.
ResumedPosition resumed_position(const nlohmann::json& record, const nlohmann::json& present, bool may_differ,
                                 const std::string& where);

}  // namespace fsdp::train
