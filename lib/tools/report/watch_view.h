#pragma once

// Shows a watched run as lines of text.

#include <string>
#include <vector>

#include "tools/report/watched_run.h"

namespace fsdp::report {

/// The view: at most `height` lines of at most `width` characters, each one column wide. If there is not
/// enough room, events and processes are left out first, then the curve.
std::vector<std::string> watch_view(const WatchedState& state, int width, int height);

/// A summary of the run in one line, for its end.
std::string last_line(const WatchedState& state);

/// A curve in braille, which has 2 x 4 dots per character, as `height` lines of `width` characters. Points of
/// `marks` are drawn as "o".
std::vector<std::string> braille_curve(const std::vector<CurvePoint>& points,
                                       const std::vector<CurvePoint>& marks, int width, int height);

}  // namespace fsdp::report
