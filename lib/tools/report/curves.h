#pragma once

// The charts of a page: the numbers of one run, or of several beside each other.

#include <string>
#include <vector>

#include "tools/report/run_record.h"

namespace fsdp::report {

/// Of one run, a chart for each subject, with the training and validation loss in one. Of several, a chart for
/// each number with a curve for each run, the training loss also over tokens and time. At most kMostCurves
/// runs, whose names are escaped here.
std::string charts(const std::vector<RunRecord>& runs, const std::vector<std::string>& names);

/// A short line that looks like the curve of this number.
std::string swatch(size_t curve);

}  // namespace fsdp::report
