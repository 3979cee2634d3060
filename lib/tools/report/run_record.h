#pragma once

// Reads the files of a run's folder. They are not trusted: a crash may have torn them, and anybody may have
// written them.

#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "comm/events/trace_event.h"

namespace fsdp::report {

struct CurvePoint {
  double x = 0, y = 0;
};

/// A whole step of trace.rank<R>.jsonl (comm/events/trace_event.h): its ended collectives and its unsharded
/// buffers.
struct StepTrace {
  std::string file;
  int64_t step = 0;
  std::vector<comm::TraceEvent> events{};
};

struct RunRecord {
  std::filesystem::path folder;
  /// The finite values of each number of metrics.jsonl, sorted by step.
  std::map<std::string, std::vector<CurvePoint>> series;
  std::map<double, std::string> slow_hosts;  ///< hosts of the ranks that metrics.jsonl names as slow
  int64_t nonfinite_losses = 0;              ///< number of lines of steps whose loss is not finite
  /// Number of lines of metrics.jsonl that are torn or were not written by fsdp-train.
  int64_t skipped_lines = 0;
  std::string config;  ///< content of config.toml; empty if there is none
  std::vector<std::pair<std::string, std::string>> environment;  ///< content of environment.json
  /// A step of the lowest rank that has a trace: the last but one, because the last may be torn, or the only
  /// one.
  std::optional<StepTrace> trace;
  int64_t skipped_trace_lines = 0;

  const std::vector<CurvePoint>& values(const std::string& name) const;
  /// Text for a slow rank: "rank 3 on node-b".
  std::string slow_rank_name(double rank) const;
};

/// Parses a line of metrics.jsonl, an object with an integer "step". nullopt for a line that fsdp-train did
/// not write, or that is torn.
std::optional<nlohmann::json> parse_metrics(const std::string& line);

/// Appends the finite numbers of a line of metrics.jsonl to their series. False for a line that fsdp-train
/// did not write.
bool add_metrics(const std::string& line, RunRecord& run);

/// Reads environment.json of the run's folder.
void read_environment(RunRecord& run);

/// Throws Error(kUsage) if the folder has no metrics.jsonl.
void require_metrics(const std::filesystem::path& folder);

/// Reads the files of a run's folder. Throws Error(kUsage) if the folder has no metrics.jsonl, and Error(kIo)
/// for files that cannot be read.
RunRecord read_run(const std::filesystem::path& folder);

}  // namespace fsdp::report
