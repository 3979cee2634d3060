#pragma once

// The timeline of a step as a file: a picture (.svg) or a Chrome trace (.json).

#include <filesystem>
#include <string>

#include "comm/events/step_tracks.h"

namespace fsdp::report {

/// What write_timeline() would find only after the steps. Nothing for an empty path. Throws Error(kUsage) for another
/// ending, and Error(kIo) where no file can be written.
void check_timeline(const std::filesystem::path& path);

/// The time axis, in microseconds.
struct TimelineRange {
  double begin_us = 0, end_us = 0;
};

/// Of the first rank. Nothing for an empty path.
void write_timeline(const std::filesystem::path& path, const comm::StepTracks& tracks,
                    const std::string& title, const TimelineRange& range);

}  // namespace fsdp::report
