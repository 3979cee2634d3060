#pragma once

// fsdp-train --report: a run as one self-contained HTML page, without scripts: curves of the numbers in
// metrics.jsonl, the run's config and environment, and, where communication was traced, a timeline of one
// step.

#include <filesystem>
#include <string>

#include "report/run_record.h"

namespace fsdp::report {

std::string html_page(const RunRecord& run);

/// Writes folder/report.html and returns its path. Throws as read_run() does, and Error(kIo).
std::filesystem::path write_report(const std::filesystem::path& folder);

}  // namespace fsdp::report
