#pragma once

// fsdp-train --report: a run as one HTML page that needs nothing else, no network and no script. Curves of
// what metrics.jsonl has, the run's config and environment, and, where communication was traced, a timeline
// of one step.

#include <filesystem>
#include <string>

#include "report/run_record.h"

namespace fsdp::report {

std::string html_page(const RunRecord& run);

/// Writes folder/report.html and returns its path. Throws as read_run() does, and Error(kIo).
std::filesystem::path write_report(const std::filesystem::path& folder);

}  // namespace fsdp::report
