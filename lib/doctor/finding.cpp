#include <algorithm>

#include "doctor/doctor.h"
#include "util/error.h"
#include "util/text.h"

namespace fsdp::doctor {
namespace {

constexpr size_t kSubjectColumn = 6, kTextColumn = 24;

const char* name_of(Verdict verdict) {
  switch (verdict) {
    case Verdict::kOk:
      return "ok";
    case Verdict::kWarn:
      return "warn";
    case Verdict::kFail:
      return "fail";
  }
  return "";
}

}  // namespace

std::string report_text(const Findings& findings) {
  std::string text;
  size_t counts[3] = {};
  for (const Finding& finding : findings) {
    ++counts[static_cast<size_t>(finding.verdict)];
    std::string line = name_of(finding.verdict);
    line.resize(kSubjectColumn, ' ');
    line += finding.subject;
    line.resize(std::max(line.size() + 1, kTextColumn), ' ');
    text += line + finding.text + "\n";
    if (!finding.remedy.empty()) text += std::string(kTextColumn, ' ') + "-> " + finding.remedy + "\n";
  }
  return util::concat(util::printable(text), counts[0], " ok, ", counts[1], " to look at, ", counts[2],
                      " failed\n");
}

int exit_code(const Findings& findings) {
  return std::any_of(findings.begin(), findings.end(),
                     [](const Finding& finding) { return finding.verdict == Verdict::kFail; })
             ? static_cast<int>(util::ErrorKind::kUnexpected)
             : 0;
}

}  // namespace fsdp::doctor
