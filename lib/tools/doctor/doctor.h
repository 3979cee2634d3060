#pragma once

// `fsdp-train doctor`: checks, by trying if possible, whether a run would work on this machine. Changes
// nothing and leaves nothing behind.

#include <string>
#include <vector>

namespace fsdp::doctor {

enum class FindingVerdict { kOk, kWarn, kFail };

/// One line of the report.
struct Finding {
  FindingVerdict verdict = FindingVerdict::kOk;
  std::string subject;  ///< "cpu", "shared memory"
  std::string text;
  std::string remedy;  ///< empty if the verdict is kOk
};

using Findings = std::vector<Finding>;

/// The report: a line for each finding with verdict, subject and text, and its remedy on the next line.
std::string report_text(const Findings& findings);
/// The report as one JSON object (docs/schemas/fsdp-train-doctor.json).
std::string report_json(const Findings& findings);

/// The exit code: 0, or 1 if a finding is kFail.
int exit_code(const Findings& findings);

/// The run to examine.
struct ExaminedRun {
  std::string config_path;  ///< empty: none
  std::vector<std::string> overrides;
};

/// Examines the machine for a run. A config that does not load is a finding. Requires: no other thread runs,
/// because it forks a child for a moment.
Findings examine(const ExaminedRun& subject);

}  // namespace fsdp::doctor
