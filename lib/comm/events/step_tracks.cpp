#include "comm/events/step_tracks.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

namespace fsdp::comm {
namespace {

using nlohmann::ordered_json;

/// Earliest possible end of the backward of a stage whose input has no gradient: the stages inside it have
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

void sort_by_time(std::vector<Slice>& slices) {
  std::stable_sort(slices.begin(), slices.end(), [](const Slice& a, const Slice& b) {
    return a.begin_us != b.begin_us ? a.begin_us < b.begin_us : a.end_us > b.end_us;
  });
}

/// Each bar goes to the first lane that is free.
void assign_lanes(std::vector<Slice>& slices) {
  std::vector<double> ends;
  for (Slice& slice : slices) {
    const auto lane =
        std::find_if(ends.begin(), ends.end(), [&](double end) { return end <= slice.begin_us; });
    slice.lane = static_cast<int>(lane - ends.begin());
    if (lane == ends.end()) {
      ends.push_back(slice.end_us);
    } else {
      *lane = slice.end_us;
    }
  }
}

std::vector<Slice> held_parameters(const std::vector<TraceEvent>& events) {
  std::vector<Slice> held;
  std::map<std::string, size_t> open;  // indices into `held`, keyed by unit
  for (const TraceEvent& event : events) {
    if (!event.is_buffer() || event.buffer_kind != "parameters") continue;
    const auto begun = open.find(event.unit);
    if (event.pass_or_event == "allocate") {
      open[event.unit] = held.size();
      held.push_back({event.op, event.unit, "", event.bytes, event.issue_us, INFINITY});
    } else if (begun == open.end()) {
      held.push_back({event.op, event.unit, "", event.bytes, -INFINITY, event.issue_us});
    } else {
      held[begun->second].end_us = event.issue_us;
      open.erase(begun);
    }
  }
  return held;
}

std::vector<StepTracks::Live> live_bytes(const std::vector<TraceEvent>& events) {
  std::map<std::string, int64_t> live, lowest;
  for (const TraceEvent& event : events) {
    if (!event.is_buffer()) continue;
    int64_t& least = lowest[event.buffer_kind];
    least = std::min(least, live[event.buffer_kind] += event.bytes_added());
  }
  for (auto& [kind, bytes] : live) bytes = -lowest[kind];
  std::vector<StepTracks::Live> changes;
  for (const TraceEvent& event : events) {
    if (!event.is_buffer()) continue;
    live[event.buffer_kind] += event.bytes_added();
    changes.push_back({event.issue_us, live});
  }
  return changes;
}

/// Objects of a Chrome trace as they are added.
class ChromeTrace {
 public:
  ChromeTrace(int rank, double begin_us) : rank_(rank), begin_us_(begin_us) {
    add_name("process_name", 0, "rank " + std::to_string(rank));
  }

  void add_track(const char* category, const std::vector<Slice>& slices) {
    std::vector<int> lanes;  // tracks of the lanes; the first is always named
    auto track_of = [&](int lane) {
      while (static_cast<int>(lanes.size()) <= lane) {
        lanes.push_back(++tracks_);
        add_name("thread_name", tracks_, category);
      }
      return lanes[static_cast<size_t>(lane)];
    };
    track_of(0);
    for (const Slice& slice : slices) {
      const bool is_compute = slice.op == "compute";
      ordered_json args = {{"unit", slice.unit}, {"pass", slice.pass}};
      if (!is_compute) args["bytes"] = slice.bytes;
      const int track = track_of(slice.lane);
      add({{"name", (is_compute ? slice.pass : slice.op) + " " + slice.unit},
           {"cat", category},
           {"ph", "X"},
           {"ts", slice.begin_us - begin_us_},
           {"dur", slice.end_us - slice.begin_us},
           {"pid", rank_},
           {"tid", track},
           {"args", std::move(args)}});
    }
  }

  void add_live_bytes(const std::vector<StepTracks::Live>& changes) {
    for (const StepTracks::Live& change : changes) {
      add({{"name", "live unsharded bytes"},
           {"cat", "memory"},
           {"ph", "C"},
           {"ts", change.at_us - begin_us_},
           {"pid", rank_},
           {"tid", 0},
           {"args", change.bytes}});
    }
  }

  std::string text() const { return "[\n" + lines_ + "\n]\n"; }

 private:
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

StepTracks tracks_of(const std::vector<TraceEvent>& events) {
  StepTracks tracks;
  for (const TraceEvent& event : events) {
    if (event.is_buffer() || (event.is_collective() && !event.done_us)) continue;
    const double end = event.done_us ? *event.done_us : end_of_pass(events, event);
    const Slice slice{event.op, event.unit, event.pass_or_event, event.bytes, event.begin_us(), end};
    (event.is_compute() ? tracks.compute : tracks.communication).push_back(slice);
    if (event.waited_us() == 0) continue;
    tracks.waits.push_back(slice);
    tracks.waits.back().begin_us = *event.wait_us;
  }
  for (auto* slices : {&tracks.compute, &tracks.communication, &tracks.waits}) sort_by_time(*slices);
  assign_lanes(tracks.communication);
  assign_lanes(tracks.waits);
  tracks.held = held_parameters(events);
  tracks.live = live_bytes(events);
  return tracks;
}

std::string chrome_trace(const StepTracks& tracks, int rank, double begin_us) {
  ChromeTrace trace(rank, begin_us);
  trace.add_track("compute", tracks.compute);
  trace.add_track("communication", tracks.communication);
  trace.add_track("waits", tracks.waits);
  trace.add_live_bytes(tracks.live);
  return trace.text();
}

}  // namespace fsdp::comm
