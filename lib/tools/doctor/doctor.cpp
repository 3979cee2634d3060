#include "tools/doctor/doctor.h"

#include <sys/utsname.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <regex>

#include "base/cli/page.h"
#include "base/util/error.h"
#include "base/util/text.h"
#include "setup/config/load.h"
#include "tools/doctor/checks.h"

namespace fsdp::doctor {
namespace {

constexpr const char* kVerdicts[] = {"ok", "warn", "fail"};

std::string system_text() {
  utsname name{};
  if (::uname(&name) != 0) return "unknown";
  return concat(name.sysname, " ", name.release, " ", name.machine);
}

}  // namespace

std::string report_text(const Findings& findings) {
  constexpr size_t kSubjectColumn = 6, kTextColumn = 24;
  std::string text;
  size_t counts[3] = {};
  for (const Finding& finding : findings) {
    const auto verdict = static_cast<size_t>(finding.verdict);
    ++counts[verdict];
    std::string line = kVerdicts[verdict];
    line.resize(kSubjectColumn, ' ');
    line += finding.subject;
    line.resize(std::max(line.size() + 1, kTextColumn), ' ');
    text += line + finding.text + "\n";
    if (!finding.remedy.empty()) text += std::string(kTextColumn, ' ') + "-> " + finding.remedy + "\n";
  }
  return concat(util::printable(text), counts[0], " ok, ", counts[1], " warnings, ", counts[2], " failed\n");
}

std::string report_json(const Findings& findings) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const Finding& finding : findings) {
    list.push_back({{"verdict", kVerdicts[static_cast<size_t>(finding.verdict)]},
                    {"subject", finding.subject},
                    {"text", finding.text},
                    {"remedy", finding.remedy}});
  }
  const nlohmann::ordered_json json = {{"usable", exit_code(findings) == 0}, {"findings", std::move(list)}};
  return json.dump(2, ' ', true, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

int exit_code(const Findings& findings) {
  return std::any_of(findings.begin(), findings.end(),
                     [](const Finding& finding) { return finding.verdict == FindingVerdict::kFail; })
             ? static_cast<int>(ErrorKind::kUnexpected)
             : 0;
}

Findings examine(const ExaminedRun& subject) {
  const std::string build = std::regex_replace(cli::version_text("fsdp"), std::regex("\n"), ", ");
  Findings findings = {{FindingVerdict::kOk, "build", build, ""},
                       {FindingVerdict::kOk, "system", system_text(), ""}};
  // Forks, and therefore comes before everything that starts threads.
  const Finding shared_memory = check_shared_memory();
  std::optional<config::Config> config;
  if (!subject.config_path.empty()) {
    try {
      const config::TracedConfig traced = config::trace_config(subject.config_path, subject.overrides);
      config = traced.config;
      findings.push_back({FindingVerdict::kOk, "config", subject.config_path + " loads", ""});
      for (const std::string& warning : traced.warnings) {
        findings.push_back({FindingVerdict::kWarn, "config", warning, ""});
      }
    } catch (const util::Error& error) {
      findings.push_back(
          {FindingVerdict::kFail, "config", error.what(), "correct it; fsdp-train --help lists the keys"});
    }
  }
  std::vector<Findings> parts = {check_processors(config ? config->training.matmul.name() : "auto"),
                                 check_memory(),
                                 check_limits(),
                                 {shared_memory},
                                 check_network(),
                                 check_accelerators()};
  if (config) {
    parts.push_back(check_float8(*config, usable_gpus()));
    parts.push_back(check_files(*config));
    parts.push_back(check_disk(*config));
  }
  for (const Findings& part : parts) findings.insert(findings.end(), part.begin(), part.end());
  return findings;
}

}  // namespace fsdp::doctor
