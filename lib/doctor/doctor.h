#pragma once

// `fsdp-train doctor`: what a run would meet on this machine, found by trying it where that is possible.
// Nothing is changed, and nothing is left behind.

#include <string>
#include <vector>

namespace fsdp::doctor {

/// The run that it is asked about.
struct Subject {
  std::string config_path;  ///< empty: none
  std::vector<std::string> overrides;
};

/// A config that does not load is a finding. Starts a process for a moment, so no other thread may run.
Findings examine(const Subject& subject);

}  // namespace fsdp::doctor
