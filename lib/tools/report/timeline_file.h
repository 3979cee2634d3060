#pragma once

// Writes the timeline of a step to a file: a picture (.svg) or a Chrome trace (.json).

#include <filesystem>
#include <string>

#include "comm/events/step_tracks.h"

namespace fsdp::report {

/// Checks a path before the steps, so that write_timeline() does not fail after them. Does nothing for an
/// empty path. Throws Error(kUsage) for another ending, and Error(kIo) if no file can be written.
void check_timeline(const std::filesystem::path& path);

/// Begin and end of the time axis, in microseconds.
struct TimelineRange {
  double begin_us = 0, end_us = 0;
};

/// Writes the timeline of the first rank. Does nothing for an empty path.
void write_timeline(const std::filesystem::path& path, const comm::StepTracks& tracks,
                    const std::string& title, const TimelineRange& range);

}  // namespace fsdp::report
