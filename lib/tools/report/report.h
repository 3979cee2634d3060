#pragma once

// fsdp-train --report: a self-contained HTML page without scripts on one or several runs. The page of one run
// has curves of the numbers in metrics.jsonl, its config and environment, and, if communication was traced,
// the picture of a step. The page of several runs compares their numbers and curves, and lists the config
// keys in which they differ.

#include <filesystem>
#include <string>
#include <vector>

#include "tools/report/run_record.h"

namespace fsdp::report {

/// The page of 1 to kMostCurves (chart.h) runs.
std::string html_page(const std::vector<RunRecord>& runs);

/// Writes the page to `output` and returns its path. An empty `output` stands for report.html in the folder
/// of a single run, and for comparison.html in the working directory for several runs. Throws like
/// read_run(), Error(kUsage) for too many runs, and Error(kIo).
std::filesystem::path write_report(const std::vector<std::filesystem::path>& folders,
                                   const std::filesystem::path& output = {});

}  // namespace fsdp::report
