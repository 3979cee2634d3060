#pragma once

// What the folder of a run tells of it, read with care: files may be torn by a crash, or be anybody's.

#include <array>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace fsdp::report {

struct Point {
  double x = 0, y = 0;
};

/// A bar of the communication timeline, or a buffer that was there from begin to end. Microseconds.
struct Span {
  std::string unit;
  std::string op;    ///< all_gather, reduce_scatter, all_reduce, broadcast; "buffer" for unsharded parameters
  std::string pass;  ///< forward, backward, optimizer, other
  double begin_us = 0, end_us = 0;
  std::optional<double> waited_from_us{};  ///< the rank waited for it from here to its end
  int64_t bytes = 0;
};

struct StepTrace {
  std::string file;
  int64_t step = 0;
  std::vector<Span> spans;
};

struct RunRecord {
  std::filesystem::path folder;
  /// Of each number of metrics.jsonl its finite values over the steps, by rising step.
  std::map<std::string, std::vector<Point>> series;
  int64_t skipped_lines = 0;  ///< of metrics.jsonl: torn, or not what fsdp-train writes
  std::string config;         ///< config.toml; empty: not there
  std::vector<std::pair<std::string, std::string>> environment;  ///< of environment.json
  std::optional<StepTrace> trace;  ///< of the process with the lowest number that has one
  int64_t skipped_trace_lines = 0;

  const std::vector<Point>& values(const std::string& name) const;
};

/// Throws Error(kUsage) where the folder has no metrics.jsonl, and Error(kIo) for what cannot be read.
RunRecord read_run(const std::filesystem::path& folder);

}  // namespace fsdp::report
