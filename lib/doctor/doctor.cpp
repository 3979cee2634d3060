#include "doctor/doctor.h"

#include <sys/utsname.h>

#include <optional>

#include "cli/page.h"
#include "config/load.h"
#include "doctor/checks.h"
#include "util/error.h"

namespace fsdp::doctor {
namespace {

std::string build() {
  std::string text = cli::version_text("fsdp");
  for (size_t at = text.find('\n'); at != std::string::npos; at = text.find('\n')) text.replace(at, 1, ", ");
  return text;
}

std::string system_text() {
  utsname name{};
  if (::uname(&name) != 0) return "unknown";
  return util::concat(name.sysname, " ", name.release, " ", name.machine);
}

void append(Findings& findings, const Findings& more) {
  findings.insert(findings.end(), more.begin(), more.end());
}

}  // namespace

Findings examine(const Subject& subject) {
  Findings findings = {{Verdict::kOk, "build", build(), ""}, {Verdict::kOk, "system", system_text(), ""}};
  // Before anything starts threads, which the process that it starts would lack.
  const Finding shared_memory = check_shared_memory();
  std::optional<config::Config> config;
  if (!subject.config_path.empty()) {
    try {
      config = config::load_config(subject.config_path, subject.overrides);
      findings.push_back({Verdict::kOk, "config", subject.config_path + " loads", ""});
    } catch (const util::Error& error) {
      findings.push_back(
          {Verdict::kFail, "config", error.what(), "correct it; fsdp-train --help lists the keys"});
    }
  }
  append(findings, check_processors(config ? config->training.matmul : "auto"));
  append(findings, check_memory());
  append(findings, check_limits());
  findings.push_back(shared_memory);
  append(findings, check_network());
  append(findings, check_accelerators());
  if (config) {
    append(findings, check_float8(*config, usable_gpus()));
    append(findings, check_files(*config));
    append(findings, check_disk(*config));
  }
  return findings;
}

}  // namespace fsdp::doctor
