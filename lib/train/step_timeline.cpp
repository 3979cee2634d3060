#include "train/step_timeline.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <set>

#include "util/error.h"
#include "util/text.h"

namespace fsdp::train {
namespace {

using util::concat;

double waited_us(const comm::Trace::Event& event) {
  return event.wait_us && event.done_us ? std::max(0.0, *event.done_us - *event.wait_us) : 0;
}

/// "gather", "gathered"; "reduce", ...
struct Words {
  std::string issued, done;
};

Words words_for(const std::string& op) {
  static const std::map<std::string, Words> words = {{"all_gather", {"gather issued", "gathered"}},
                                                     {"reduce_scatter", {"reduce issued", "reduced"}},
                                                     {"all_reduce", {"all-reduce issued", "all-reduced"}},
                                                     {"broadcast", {"broadcast issued", "broadcast done"}}};
  auto found = words.find(op);
  return found == words.end() ? Words{concat(op, " issued"), concat(op, " done")} : found->second;
}

void add_collective(const comm::Trace::Event& event, std::vector<TimelineEvent>& events) {
  Words words = words_for(event.op);
  events.push_back({.at_us = event.issue_us,
                    .unit = event.unit,
                    .what = words.issued,
                    .detail = util::human_bytes(event.bytes)});
  if (!event.done_us) return;
  double waited = waited_us(event);
  std::string took = milliseconds(*event.done_us - event.start_us.value_or(event.issue_us));
  events.push_back(
      {.at_us = *event.done_us,
       .unit = event.unit,
       .what = words.done,
       .detail = concat(took, waited > 0 ? concat(", waited ", milliseconds(waited)) : ", hidden")});
}

const char* name_of(ComputeSpan::Kind kind) {
  switch (kind) {
    case ComputeSpan::Kind::kForward:
      return "forward";
    case ComputeSpan::Kind::kRecomputation:
      return "forward again";
    case ComputeSpan::Kind::kBackward:
      return "backward";
  }
  return "";
}

/// Live bytes at points of time, as the events of buffers add up.
class LiveBytes {
 public:
  explicit LiveBytes(const std::vector<comm::Trace::Event>& events) {
    int64_t live = 0;
    for (const auto& event : events) {
      if (event.buffer_kind == nullptr) continue;
      live += event.pass_or_event == "allocate" ? event.bytes : -event.bytes;
      steps_.emplace_back(event.issue_us, live);
    }
  }
  int64_t at(double us) const {
    auto after = std::upper_bound(steps_.begin(), steps_.end(), us,
                                  [](double time, const auto& step) { return time < step.first; });
    return after == steps_.begin() ? 0 : std::prev(after)->second;
  }

 private:
  std::vector<std::pair<double, int64_t>> steps_;
};

std::string line_of(const TimelineEvent& event, double begin_us, int unit_width) {
  char head[256];
  std::snprintf(head, sizeof head, "%10.2f  %-*s  %-17s  %-30s", (event.at_us - begin_us) / 1000, unit_width,
                event.unit.c_str(), event.what.c_str(), event.detail.c_str());
  return concat(head, "  ", util::human_bytes(event.live_bytes), "\n");
}

std::vector<TimelineEvent> without(const std::vector<TimelineEvent>& events,
                                   const std::set<std::string>& hidden) {
  std::vector<TimelineEvent> shown;
  std::copy_if(events.begin(), events.end(), std::back_inserter(shown),
               [&](const TimelineEvent& event) { return !hidden.contains(event.unit); });
  return shown;
}

/// Places in `events`. A micro-batch begins with the forward of the root, or with the gathers for it.
std::vector<size_t> begins_of_micro_batches(const std::vector<TimelineEvent>& events,
                                            const std::string& root) {
  std::vector<size_t> begins;
  for (size_t i = 0; i < events.size(); ++i) {
    if (events[i].what != "forward" || events[i].unit != root) continue;
    size_t begin = i;
    while (begin > 0 && events[begin - 1].what.starts_with("gather")) --begin;
    begins.push_back(begin);
  }
  return begins;
}

/// The events that the limits let through; `note` tells of the others.
std::vector<TimelineEvent> select(std::vector<TimelineEvent> events, const TimelineLimits& limits,
                                  std::string& note) {
  if (limits.most_lines == 0 || events.size() <= limits.most_lines) return events;
  std::vector<std::string> left_out;
  std::vector<size_t> micro_batches = begins_of_micro_batches(events, limits.units.front());
  if (micro_batches.size() > 1) {
    events.erase(events.begin(), events.begin() + static_cast<std::ptrdiff_t>(micro_batches.back()));
    size_t count = micro_batches.size();
    left_out.push_back(count == 2 ? std::string("micro-batch 1 of 2")
                                  : concat("micro-batches 1 to ", count - 1, " of ", count));
  }
  const size_t inner = limits.units.size() - limits.root_units;
  for (size_t ends = inner > 2 ? (inner - 1) / 2 : 0; ends > 0 && events.size() > limits.most_lines; --ends) {
    auto first = limits.units.begin() + static_cast<std::ptrdiff_t>(limits.root_units + ends);
    auto last = limits.units.end() - static_cast<std::ptrdiff_t>(ends + 1);
    auto shown = without(events, {first, last + 1});
    if (shown.size() > limits.most_lines && ends > 1) continue;
    events = std::move(shown);
    left_out.push_back(first == last ? concat("unit ", *first)
                                     : concat("the units from ", *first, " to ", *last));
  }
  if (!left_out.empty())
    note = concat("not shown: ", util::join(left_out, "; "), " (`all_units` shows everything)\n");
  return events;
}

}  // namespace

std::string milliseconds(double us) {
  char text[64];
  std::snprintf(text, sizeof text, "%.2f ms", us / 1000);
  return text;
}

std::vector<TimelineEvent> timeline_of(const StepRecord& step) {
  std::vector<TimelineEvent> events;
  for (const auto& event : step.events) {
    if (event.buffer_kind == nullptr) {
      add_collective(event, events);
    } else if (event.pass_or_event == "free" && std::string(event.buffer_kind) == "parameters") {
      events.push_back({.at_us = event.issue_us,
                        .unit = event.unit,
                        .what = "freed",
                        .detail = util::human_bytes(event.bytes)});
    }
  }
  for (const ComputeSpan& span : step.spans) {
    std::string took = span.end_us ? milliseconds(*span.end_us - span.begin_us) : "to the end of the pass";
    events.push_back({.at_us = span.begin_us, .unit = span.unit, .what = name_of(span.kind), .detail = took});
  }
  events.push_back({.at_us = step.end_us, .unit = "step", .what = "ends"});
  std::stable_sort(events.begin(), events.end(),
                   [](const TimelineEvent& a, const TimelineEvent& b) { return a.at_us < b.at_us; });
  LiveBytes live(step.events);
  for (TimelineEvent& event : events) event.live_bytes = live.at(event.at_us);
  return events;
}

std::string timeline_text(const StepRecord& step, const TimelineLimits& limits) {
  std::string note;
  std::vector<TimelineEvent> events = select(timeline_of(step), limits, note);
  size_t width = 4;
  for (const TimelineEvent& event : events) width = std::max(width, event.unit.size());
  int unit_width = static_cast<int>(std::min<size_t>(width, 60));
  char heading[256];
  std::snprintf(heading, sizeof heading, "%10s  %-*s  %-17s  %-30s  %s\n", "ms", unit_width, "unit", "event",
                "payload or duration", "live after it");
  std::string text = heading;
  for (const TimelineEvent& event : events) text += line_of(event, step.begin_us, unit_width);
  return text + note;
}

CommunicationTime communication_time(const StepRecord& step) {
  CommunicationTime time;
  for (const auto& event : step.events) {
    if (event.buffer_kind != nullptr || !event.done_us) continue;
    time.total_us += *event.done_us - event.start_us.value_or(event.issue_us);
    time.exposed_us += waited_us(event);
  }
  return time;
}

}  // namespace fsdp::train
