#pragma once

// The files of a run's folder, read without trust: a crash may have torn them, and anybody may have written
// them.

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "comm/events/trace_event.h"

namespace fsdp::report {

struct Point {
  double x = 0, y = 0;
};

/// A whole step of trace.rank<R>.jsonl (comm/events/trace_event.h): its collectives that have ended, and its
/// unsharded buffers.
struct StepTrace {
  std::string file;
  int64_t step = 0;
  std::vector<comm::TraceEvent> events{};
};

struct RunRecord {
  std::filesystem::path folder;
  /// The finite values of each number of metrics.jsonl, sorted by step.
  std::map<std::string, std::vector<Point>> series;
  std::map<double, std::string> slow_hosts;  ///< of the ranks that metrics.jsonl names as slow
  int64_t skipped_lines = 0;                 ///< of metrics.jsonl: torn, or not written by fsdp-train
  std::string config;                        ///< config.toml; empty when there is none
  std::vector<std::pair<std::string, std::string>> environment;  ///< of environment.json
  /// Of the lowest rank that has a trace: the last step but one, since the last may be torn, or the only one.
  std::optional<StepTrace> trace;
  int64_t skipped_trace_lines = 0;

  const std::vector<Point>& values(const std::string& name) const;
  /// "rank 3 on node-b".
  std::string slow_rank_name(double rank) const;
};

/// Adds the finite numbers of a line of metrics.jsonl behind those of their series. False for a line that
/// fsdp-train did not write.
bool add_metrics(const std::string& line, RunRecord& run);

/// Adds what environment.json of its folder says.
void read_environment(RunRecord& run);

/// Throws Error(kUsage) where the folder has no metrics.jsonl.
void require_metrics(const std::filesystem::path& folder);

/// Throws Error(kUsage) where the folder has no metrics.jsonl, and Error(kIo) for what cannot be read.
RunRecord read_run(const std::filesystem::path& folder);

}  // namespace fsdp::report
