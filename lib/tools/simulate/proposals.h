#pragma once

// fsdp-plan --simulate --propose: simulates a run in several ways to share it between hosts, and sorts them
// by speed. A way is a list of overrides of the config, so a new one is a row of a table in proposals.cpp.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "setup/config/config.h"
#include "tools/plan/plan.h"
#include "tools/simulate/simulate.h"

namespace fsdp::simulate {

/// A way to train.
struct Candidate {
  std::string name = {};                    ///< "full_shard, 4 micro-batches"
  std::vector<std::string> overrides = {};  ///< "section.key=value"
  bool changes_training = false;            ///< whether batch or rounding differ from those of the config
  bool is_own = false;                      ///< whether the user gave it
};

/// Parses overrides with spaces between them: "fsdp.strategy=no_shard optimizer.lr=1e-3". Throws
/// Error(kUsage) for a word that is none, and for an empty text.
Candidate candidate_from_text(const std::string& text);

/// The built-in candidates for `world_size` ranks with `ranks_of_host` on each host, the config as it is
/// first: every way to cut the state, alone, with each way to send fewer bytes, and with all of them.
std::vector<Candidate> built_in_candidates(const config::Config& config, int64_t world_size,
                                           int64_t ranks_of_host);

/// A simulated candidate.
struct Proposal {
  Candidate candidate = {};
  double tokens_per_second = 0, step_seconds = 0;
  int64_t tokens_per_step = 0;
  int64_t bytes_from_other_hosts = 0;  ///< bytes of a step that each host receives from the others
  int64_t device_peak = 0;             ///< memory of a rank
  bool fits = false;
  std::string refusal = {};  ///< reason why the config cannot be changed so; empty: it can
};

/// Returns the config with additional overrides, or throws Error(kUsage).
using ConfigWith = std::function<config::Config(const std::vector<std::string>& overrides)>;
/// Plans a config on the machines in question.
using Planner = std::function<plan::Plan(const config::Config& config)>;

/// Simulates the candidates. The result is sorted: the fastest first, then those that do not fit into memory,
/// then those that the config refuses. A built-in candidate that equals an earlier one is left out. Throws
/// what the first candidate throws.
std::vector<Proposal> propose(const std::vector<Candidate>& candidates, const ConfigWith& config_with,
                              const Planner& planner, const SimulationOptions& options);

/// A table for people: the best proposals, and how to use the first. `as_given`: the plan of the config.
std::string proposals_text(const plan::Plan& as_given, const std::vector<Proposal>& proposals);
/// One JSON object with all proposals, with a line end.
std::string proposals_json(const plan::Plan& as_given, const std::vector<Proposal>& proposals);

}  // namespace fsdp::simulate
