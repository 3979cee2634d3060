#include "comm/events/trace_event.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

namespace fsdp::comm {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

std::string text_member(const json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

std::optional<double> number_member(const json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_number()) return std::nullopt;
  const double number = found->get<double>();
  return std::isfinite(number) ? std::optional(number) : std::nullopt;
}

}  // namespace

bool TraceEvent::complete() const {
  if (is_compute()) return done_us || left_alone;
  return is_buffer() || (done_us && (wait_us || left_alone));
}

int64_t TraceEvent::bytes_added() const { return pass_or_event == "allocate" ? bytes : -bytes; }

double TraceEvent::waited_us() const { return wait_us && done_us ? std::max(0.0, *done_us - *wait_us) : 0; }

std::string trace_line(const TraceEvent& event) {
  ordered_json line = {{"step", event.step}, {"op", event.op}};
  if (event.is_buffer()) {
    line.update({{"event", event.pass_or_event},
                 {"unit", event.unit},
                 {"bytes", event.bytes},
                 {"kind", event.buffer_kind},
                 {"at_us", event.issue_us}});
  } else {
    line.update({{"unit", event.unit},
                 {"pass", event.pass_or_event},
                 {"bytes", event.bytes},
                 {"issue_us", event.issue_us}});
    if (event.start_us) line["start_us"] = *event.start_us;
    if (event.wait_us) line["wait_us"] = *event.wait_us;
    if (event.done_us) line["done_us"] = *event.done_us;
  }
  return line.dump();
}

std::optional<TraceEvent> parse_trace_line(std::string_view line) {
  const json object = json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!object.is_object()) return std::nullopt;
  const auto step = number_member(object, "step");
  TraceEvent event{.op = text_member(object, "op"), .unit = text_member(object, "unit")};
  const auto time = number_member(object, event.is_buffer() ? "at_us" : "issue_us");
  if (!step || std::abs(*step) > 1e15 || event.op.empty() || !time) return std::nullopt;
  event.step = static_cast<int64_t>(*step);
  event.pass_or_event = text_member(object, event.is_buffer() ? "event" : "pass");
  event.bytes = static_cast<int64_t>(std::clamp(number_member(object, "bytes").value_or(0), 0.0, 1e18));
  event.issue_us = *time;
  if (event.is_buffer()) {
    event.buffer_kind = text_member(object, "kind");
    return event;
  }
  event.start_us = number_member(object, "start_us");
  event.wait_us = number_member(object, "wait_us");
  event.done_us = number_member(object, "done_us");
  if (event.done_us && *event.done_us < event.begin_us()) return std::nullopt;
  return event;
}

}  // namespace fsdp::comm
