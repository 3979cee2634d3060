#include "report/step_trace.h"

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

namespace fsdp::report {
namespace {

using nlohmann::json;

constexpr size_t kMostSpans = 100'000;  ///< of a step

std::string text_of(const json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

std::optional<double> number_of(const json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_number()) return std::nullopt;
  const double number = found->get<double>();
  return std::isfinite(number) ? std::optional(number) : std::nullopt;
}

/// The spans of one step, as lines of it come.
class StepReader {
 public:
  int64_t step() const { return trace_.step; }
  bool empty() const { return trace_.spans.empty(); }
  void start(int64_t step) {
    trace_ = {.file = "", .step = step, .spans = {}};
    open_buffers_.clear();
  }
  StepTrace take() { return std::move(trace_); }

  /// Whether it was a line of a trace.
  bool add(const json& object) {
    const std::string op = text_of(object, "op"), unit = text_of(object, "unit");
    if (op.empty()) return false;
    if (op == "buffer") return add_buffer(object, unit);
    const auto issue = number_of(object, "issue_us"), done = number_of(object, "done_us");
    if (!issue) return false;
    if (!done || trace_.spans.size() >= kMostSpans) return true;  // one that failed
    const double begin = number_of(object, "start_us").value_or(*issue);
    if (*done < begin) return false;
    Span span{.unit = unit, .op = op, .pass = text_of(object, "pass"), .begin_us = begin, .end_us = *done};
    const auto wait = number_of(object, "wait_us");
    if (wait && *wait < *done) span.waited_from_us = std::max(*wait, begin);
    span.bytes = static_cast<int64_t>(std::min(number_of(object, "bytes").value_or(0), 1e18));
    trace_.spans.push_back(std::move(span));
    return true;
  }

 private:
  bool add_buffer(const json& object, const std::string& unit) {
    const auto at = number_of(object, "at_us");
    if (!at) return false;
    if (text_of(object, "kind") != "parameters") return true;
    if (text_of(object, "event") == "allocate") {
      open_buffers_[unit] = *at;
    } else if (auto opened = open_buffers_.find(unit); opened != open_buffers_.end()) {
      if (*at >= opened->second && trace_.spans.size() < kMostSpans) {
        trace_.spans.push_back(
            {.unit = unit, .op = "buffer", .pass = "", .begin_us = opened->second, .end_us = *at});
      }
      open_buffers_.erase(opened);
    }
    return true;
  }

  StepTrace trace_;
  std::map<std::string, double> open_buffers_;
};

}  // namespace

std::optional<StepTrace> read_step_trace(const std::filesystem::path& path, int64_t& skipped_lines) {
  std::ifstream file(path, std::ios::binary);
  StepReader now;
  std::optional<StepTrace> before;
  for (std::string line; std::getline(file, line);) {
    const json object = json::parse(line, nullptr, /*allow_exceptions=*/false);
    const auto step = object.is_object() ? number_of(object, "step") : std::nullopt;
    if (!step || std::abs(*step) > 1e15) {
      ++skipped_lines;
      continue;
    }
    const auto number = static_cast<int64_t>(*step);
    if (number != now.step()) {
      if (!now.empty() && now.step() > 0) before = now.take();  // step 0 is what comes before the first
      now.start(number);
    }
    if (!now.add(object)) ++skipped_lines;
  }
  std::optional<StepTrace> chosen = before        ? std::move(before)
                                    : now.empty() ? std::nullopt
                                                  : std::optional(now.take());
  if (chosen) chosen->file = path.filename().string();
  return chosen;
}

}  // namespace fsdp::report
