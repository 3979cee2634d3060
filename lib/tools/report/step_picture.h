#pragma once

// A step on one rank as SVG: the picture of --explain-step and of the report.

#include <string>

#include "comm/events/step_tracks.h"

namespace fsdp::report {

struct StepPicture {
  std::string title;  ///< for screen readers, and above the picture if it stands alone
  /// Where the time axis begins and ends; the first and the last bar where they are equal.
  double begin_us = 0, end_us = 0;
  bool stands_alone = false;  ///< a file of its own, with colours and background, instead of a part of a page
};

/// From above: a legend; compute, communication and waits, each with a row for each lane; the live unsharded
/// parameters as a curve, with the gradients and buffers beside them as another; for each unit, when its
/// parameters were there and its collectives; the time in milliseconds. What the step does not have is left
/// out, and so are the middle ones of very many units. Empty when there is no bar.
std::string step_picture(const comm::StepTracks& tracks, const StepPicture& picture);

}  // namespace fsdp::report
