#pragma once

// fsdp-train --report: runs as one self-contained HTML page without scripts. Of one run: curves of the numbers in
// metrics.jsonl, its config and environment, and, if communication was traced, the picture of a step. Of
// several: their numbers and curves beside each other, and the config keys in which they differ.

#include <filesystem>
#include <string>
#include <vector>

#include "tools/report/run_record.h"

namespace fsdp::report {

/// Of 1 to kMostCurves (chart.h) runs.
std::string html_page(const std::vector<RunRecord>& runs);

/// Writes the page to `output`, or if that is empty to report.html in the folder of a single run and to
/// comparison.html in the working directory for several; returns its path. Throws as read_run() does,
/// Error(kUsage) for too many runs, and Error(kIo).
std::filesystem::path write_report(const std::vector<std::filesystem::path>& folders,
                                   const std::filesystem::path& output = {});

}  // namespace fsdp::report
