#pragma once

// Draws a step on one rank as SVG, for --explain-step and for the report.

#include <string>

#include "comm/events/step_tracks.h"

namespace fsdp::report {

struct StepPicture {
  std::string title;  ///< title for screen readers, also shown above a picture of its own
  /// Begin and end of the time axis. Equal: the axis extends from the first to the last bar.
  double begin_us = 0, end_us = 0;
  /// Whether the picture is a file with colours and background, instead of a part of a page.
  bool stands_alone = false;
};

/// The picture, from top to bottom: a legend; compute, communication and waits, with a row for each lane; a
/// curve of the live unsharded parameters, and a curve that adds gradients and buffers; for each unit, its
/// collectives and when its parameters were gathered; the time in milliseconds. Leaves out rows that the step
/// does not have, and the middle units if there are very many. Empty if there is no bar.
std::string step_picture(const comm::StepTracks& tracks, const StepPicture& picture);

}  // namespace fsdp::report
