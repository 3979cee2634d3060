#pragma once

#include <string>
#include <vector>

namespace fsdp::doctor {

enum class Verdict { kOk, kWarn, kFail };

/// One line of the report.
struct Finding {
  Verdict verdict = Verdict::kOk;
  std::string subject;  ///< "cpu", "shared memory"
  std::string text;     ///< what was found
  std::string remedy;   ///< what to do about it; empty where it is well
};

using Findings = std::vector<Finding>;

/// A line each: verdict, subject, text, and under it the remedy.
std::string report_text(const Findings& findings);

/// 0, or 1 if something fails.
int exit_code(const Findings& findings);

}  // namespace fsdp::doctor
