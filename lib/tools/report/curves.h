#pragma once

// The charts of a page: the numbers of one run, or of several runs for comparison.

#include <string>
#include <vector>

#include "tools/report/run_record.h"

namespace fsdp::report {

/// Charts of at most kMostCurves runs. One run gets a chart for each subject, with the training and
/// validation loss in one chart. Several runs get a chart for each number with a curve for each run, and
/// charts of the training loss over tokens and over time. The names are escaped here.
std::string charts(const std::vector<RunRecord>& runs, const std::vector<std::string>& names);

/// A short line in the style of the curve with this index.
std::string swatch(size_t curve);

}  // namespace fsdp::report
