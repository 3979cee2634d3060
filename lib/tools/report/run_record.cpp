#include "tools/report/run_record.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "base/util/error.h"
#include "base/util/file.h"
#include "base/util/json.h"
#include "base/util/regular_file.h"
#include "base/util/text.h"

namespace fsdp::report {
namespace fs = std::filesystem;
using nlohmann::json;

namespace {

constexpr size_t kMostTextBytes = 1 << 20;
constexpr size_t kMostSeries = 64;
constexpr size_t kMostHosts = 4096;
constexpr size_t kMostTraceEvents = 200'000;  ///< most events of a step
constexpr size_t kLongestLine = 1 << 20;
constexpr util::JsonLimits kLineLimits{.deepest_level = 8, .most_values = 100'000, .unique_keys = false};

/// At most kMostTextBytes of a file, without control characters. Empty if there is no file.
std::string shown_text(const fs::path& path) {
  return util::printable(util::read_beginning(path, kMostTextBytes));
}

}  // namespace

std::optional<json> parse_metrics(const std::string& line) {
  try {
    json object = util::parse_json(line, kLineLimits);
    if (!object.is_object() || !object.contains("step") || !object["step"].is_number_integer())
      return std::nullopt;
    return object;
  } catch (const util::JsonError&) {
    return std::nullopt;
  }
}

bool add_metrics(const std::string& line, RunRecord& run) {
  const auto object = parse_metrics(line);
  if (!object) return false;
  const double x = object->at("step").get<double>();
  if (const auto loss = object->find("loss"); loss != object->end()) {
    // JSON has no NaN, for which null is written.
    if (!loss->is_number() || !std::isfinite(loss->get<double>())) ++run.nonfinite_losses;
  }
  for (const auto& [name, value] : object->items()) {
    if (!value.is_number() || name == "step") continue;
    const double y = value.get<double>();
    if (!std::isfinite(y)) continue;
    if (!run.series.contains(name) && run.series.size() >= kMostSeries) continue;
    run.series[name].push_back({x, y});
  }
  const auto slow = object->find("slow_rank"), host = object->find("slow_rank_host");
  if (slow != object->end() && slow->is_number_integer() && host != object->end() && host->is_string() &&
      run.slow_hosts.size() < kMostHosts) {
    run.slow_hosts[slow->get<double>()] = util::printable(host->get<std::string>());
  }
  return true;
}

void require_metrics(const fs::path& folder) {
  if (util::is_there(folder / "metrics.jsonl")) return;
  fail(ErrorKind::kUsage, "there is no metrics.jsonl in ", folder.string(),
       "; give the run.output_dir of a run that has started");
}

namespace {

void read_metrics(RunRecord& run) {
  const fs::path path = run.folder / "metrics.jsonl";
  require_metrics(run.folder);
  util::read_lines(path, kLongestLine, [&run](const std::string& line) {
    if (!add_metrics(line, run)) ++run.skipped_lines;
  });
  for (auto& [name, points] : run.series) {
    std::stable_sort(points.begin(), points.end(),
                     [](const CurvePoint& a, const CurvePoint& b) { return a.x < b.x; });
  }
}

}  // namespace

void read_environment(RunRecord& run) {
  const std::string text = shown_text(run.folder / "environment.json");
  std::vector<std::pair<std::string, std::string>> entries;
  try {
    util::read_json_members(text, kLineLimits, [&](std::string&& name, json&& value) {
      entries.emplace_back(std::move(name), value.is_string() ? value.get<std::string>() : value.dump());
    });
  } catch (const util::JsonError&) {
    return;
  }
  std::move(entries.begin(), entries.end(), std::back_inserter(run.environment));
}

namespace {

/// The path of trace.rank<R>.jsonl of the lowest R. Empty if there is none.
fs::path first_trace(const fs::path& folder) {
  fs::path first;
  int64_t lowest = 0;
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, ignored)) {
    const std::string name = entry.path().filename().string();
    int64_t rank = 0;
    int length = 0;
    if (std::sscanf(name.c_str(), "trace.rank%9ld.jsonl%n", &rank, &length) != 1) continue;
    if (!entry.is_regular_file(ignored)) continue;
    if (static_cast<size_t>(length) != name.size() || (!first.empty() && rank >= lowest)) continue;
    first = entry.path();
    lowest = rank;
  }
  return first;
}

/// Reads a trace, with two steps in memory at a time. Counts lines that do not belong to a trace.
std::optional<StepTrace> read_step_trace(const fs::path& path, int64_t& skipped_lines) {
  const std::string name = path.filename().string();
  StepTrace now{.file = name};
  std::optional<StepTrace> before;
  util::read_lines(path, kLongestLine, [&](const std::string& line) {
    std::optional<comm::TraceEvent> event = comm::parse_trace_line(line);
    if (!event) {
      ++skipped_lines;
      return;
    }
    if (event->step != now.step) {
      if (!now.events.empty() && now.step > 0) before = std::move(now);  // step 0: before the first step
      now = {.file = name, .step = event->step};
    }
    const bool is_shown = event->is_buffer() || (event->is_collective() && event->done_us.has_value());
    if (is_shown && now.events.size() < kMostTraceEvents) now.events.push_back(*std::move(event));
  });
  if (before || now.events.empty()) return before;
  return now;
}

}  // namespace

const std::vector<CurvePoint>& RunRecord::values(const std::string& name) const {
  static const std::vector<CurvePoint> kNone;
  const auto found = series.find(name);
  return found == series.end() ? kNone : found->second;
}

std::string RunRecord::slow_rank_name(double rank) const {
  const auto host = slow_hosts.find(rank);
  return concat("rank ", rank, host == slow_hosts.end() ? "" : " on " + host->second);
}

RunRecord read_run(const fs::path& folder) {
  RunRecord run;
  run.folder = folder;
  read_metrics(run);
  run.config = shown_text(folder / "config.toml");
  read_environment(run);
  if (const fs::path trace = first_trace(folder); !trace.empty()) {
    run.trace = read_step_trace(trace, run.skipped_trace_lines);
  }
  return run;
}

}  // namespace fsdp::report
