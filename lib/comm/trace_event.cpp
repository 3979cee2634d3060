#include "comm/trace_event.h"

#include <algorithm>
#include <cmath>
#include <map>
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

namespace {

/// A bar of a track.
struct Slice {
  std::string name;
  double begin_us = 0, end_us = 0;
  ordered_json args;
};

/// When the backward of a stage whose input has no gradient is over, at least: the stages inside it have
/// computed, and the last reduction was issued.
double end_of_pass(const std::vector<TraceEvent>& events, const TraceEvent& open) {
  double next_micro_batch = INFINITY, last = open.begin_us();
  for (const TraceEvent& event : events) {
    if (event.is_compute() && event.unit == open.unit && event.pass_or_event == "forward" &&
        event.begin_us() > open.begin_us()) {
      next_micro_batch = std::min(next_micro_batch, event.begin_us());
    }
  }
  for (const TraceEvent& event : events) {
    if (event.pass_or_event != "backward" && event.pass_or_event != "recompute") continue;
    const double end = event.is_compute() ? event.done_us.value_or(event.begin_us()) : event.issue_us;
    if (end < next_micro_batch) last = std::max(last, end);
  }
  return last;
}

/// Events of a Chrome trace as they are added.
class ChromeTrace {
 public:
  ChromeTrace(int rank, double begin_us) : rank_(rank), begin_us_(begin_us) {
    add_name("process_name", 0, "rank " + std::to_string(rank));
  }

  /// Slices that overlap go to tracks of their own, unless they are `nested`: disjoint or inside one another.
  void add_slices(const char* category, std::vector<Slice> slices, bool nested = false) {
    std::stable_sort(slices.begin(), slices.end(), [](const Slice& a, const Slice& b) {
      return a.begin_us != b.begin_us ? a.begin_us < b.begin_us : a.end_us > b.end_us;
    });
    std::vector<std::pair<int, double>> tracks = {{new_track(category), -INFINITY}};  // with their last ends
    for (const Slice& slice : slices) {
      auto track = std::find_if(tracks.begin(), tracks.end(),
                                [&](const auto& each) { return nested || each.second <= slice.begin_us; });
      if (track == tracks.end()) track = tracks.insert(track, {new_track(category), 0});
      track->second = slice.end_us;
      add({{"name", slice.name},
           {"cat", category},
           {"ph", "X"},
           {"ts", slice.begin_us - begin_us_},
           {"dur", slice.end_us - slice.begin_us},
           {"pid", rank_},
           {"tid", track->first},
           {"args", slice.args}});
    }
  }

  /// What is freed in the step and was not allocated in it was there at its beginning.
  void add_live_bytes(const std::vector<TraceEvent>& events) {
    std::map<std::string, int64_t> live, lowest;  // by kind of buffer
    for (const TraceEvent& event : events) {
      if (!event.is_buffer()) continue;
      int64_t& least = lowest[event.buffer_kind];
      least = std::min(least, live[event.buffer_kind] += event.bytes_added());
    }
    for (auto& [kind, bytes] : live) bytes = -lowest[kind];
    for (const TraceEvent& event : events) {
      if (!event.is_buffer()) continue;
      live[event.buffer_kind] += event.bytes_added();
      add({{"name", "live unsharded bytes"},
           {"cat", "memory"},
           {"ph", "C"},
           {"ts", event.issue_us - begin_us_},
           {"pid", rank_},
           {"tid", 0},
           {"args", live}});
    }
  }

  std::string text() const { return "[\n" + lines_ + "\n]\n"; }

 private:
  int new_track(const char* category) {
    add_name("thread_name", ++tracks_, category);
    return tracks_;
  }

  void add_name(const char* what, int track, const std::string& name) {
    add({{"name", what}, {"ph", "M"}, {"pid", rank_}, {"tid", track}, {"args", {{"name", name}}}});
  }

  void add(const ordered_json& event) {
    lines_ +=
        (lines_.empty() ? "" : ",\n") + event.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
  }

  int rank_;
  double begin_us_;
  int tracks_ = 0;
  std::string lines_;
};

}  // namespace

std::string chrome_trace(const std::vector<TraceEvent>& events, int rank, double begin_us) {
  std::vector<Slice> compute, communication, waits;
  for (const TraceEvent& event : events) {
    if (event.is_buffer()) continue;
    ordered_json args = {{"unit", event.unit}, {"pass", event.pass_or_event}};
    if (event.is_compute()) {
      const double end = event.done_us ? *event.done_us : end_of_pass(events, event);
      compute.push_back({event.pass_or_event + " " + event.unit, event.begin_us(), end, std::move(args)});
    } else if (event.done_us) {
      args["bytes"] = event.bytes;
      const std::string name = event.op + " " + event.unit;
      if (event.waited_us() > 0) waits.push_back({name, *event.wait_us, *event.done_us, args});
      communication.push_back({name, event.begin_us(), *event.done_us, std::move(args)});
    }
  }
  ChromeTrace trace(rank, begin_us);
  trace.add_slices("compute", std::move(compute), /*nested=*/true);
  trace.add_slices("communication", std::move(communication));
  trace.add_slices("waits", std::move(waits));
  trace.add_live_bytes(events);
  return trace.text();
}

}  // namespace fsdp::comm
