#pragma once

// `fsdp-train doctor`: what a run would meet on this machine, tried where possible. Changes nothing and
// leaves nothing behind.

#include <string>
#include <vector>

namespace fsdp::doctor {

enum class Verdict { kOk, kWarn, kFail };

/// One line of the report.
struct Finding {
  Verdict verdict = Verdict::kOk;
  std::string subject;  ///< "cpu", "shared memory"
  std::string text;
  std::string remedy;  ///< empty if the verdict is kOk
};

using Findings = std::vector<Finding>;

/// A line for each finding: verdict, subject, text; its remedy on the next line.
std::string report_text(const Findings& findings);

/// 0, or 1 if a finding is kFail.
int exit_code(const Findings& findings);

/// The run to examine.
struct Subject {
  std::string config_path;  ///< empty: none
  std::vector<std::string> overrides;
};

/// A config that does not load is a finding. Forks a child for a moment, so no other thread may run.
Findings examine(const Subject& subject);

}  // namespace fsdp::doctor
