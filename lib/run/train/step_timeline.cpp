#include "run/train/step_timeline.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "base/util/error.h"
#include "base/util/text.h"
#include "shard/engine/autograd_hooks.h"
#include "shard/engine/engine.h"

namespace fsdp::train {
namespace {

/// The backward of a stage is between two identities of the graph: one on the output, behind which the
/// stage's backward begins when the unit has been gathered, and one on the input.
class ComputeRecorder final : public nn::StageHook {
 public:
  /// `in_backward`: whether backward has begun in this micro-batch; shared by the recorders of a model.
  ComputeRecorder(std::shared_ptr<comm::Trace> trace, std::shared_ptr<bool> in_backward, std::string unit,
                  bool is_model)
      : trace_(std::move(trace)),
        in_backward_(std::move(in_backward)),
        unit_(std::move(unit)),
        is_model_(is_model) {}

  at::Tensor around(nn::Stage&, const at::Tensor& input, const Next& next) override {
    if (is_model_) *in_backward_ = false;  // the next micro-batch
    /// Event of this forward's backward.
    auto backward = std::make_shared<std::optional<uint64_t>>();
    const bool recording = at::GradMode::is_enabled();
    const bool backward_ends = recording && input.requires_grad();
    at::Tensor inner = input;
    if (backward_ends) {
      inner = shard::when_backward_ends(input, [trace = trace_, backward] {
        if (*backward) trace->finished(**backward);
      });
    }
    const uint64_t forward = trace_->computes(unit_, *in_backward_ ? "recompute" : "forward");
    at::Tensor output = next(inner);
    trace_->finished(forward);
    if (!recording || !output.requires_grad()) return output;
    return shard::when_backward_ends(
        output, [trace = trace_, in_backward = in_backward_, unit = unit_, backward, backward_ends] {
          *in_backward = true;
          *backward = trace->computes(unit, "backward", /*has_no_end=*/!backward_ends);
        });
  }

 private:
  std::shared_ptr<comm::Trace> trace_;
  std::shared_ptr<bool> in_backward_;
  std::string unit_;
  bool is_model_;
};

}  // namespace

void record_compute(nn::Stage& model, const shard::Engine& engine, std::shared_ptr<comm::Trace> trace) {
  const auto in_backward = std::make_shared<bool>(false);
  auto modules = model.named_modules("", /*include_self=*/false);
  for (const auto& unit : engine.units()) {
    nn::Stage* stage = nullptr;
    if (unit.get() == engine.units().front().get()) {
      stage = &model;
    } else if (!engine.is_root(*unit)) {
      stage = dynamic_cast<nn::Stage*>(modules[unit->name()].get());
      FSDP_CHECK(stage != nullptr, unit->name());
    }
    if (stage == nullptr) continue;
    stage->attach(std::make_shared<ComputeRecorder>(trace, in_backward, unit->name(), stage == &model));
  }
}

namespace {

/// Names of a collective when it is issued and when it is done.
struct Words {
  std::string issued, done;
};

Words words_for(const std::string& op) {
  static const std::map<std::string, Words> words = {{"all_gather", {"gather issued", "gathered"}},
                                                     {"reduce_scatter", {"reduce issued", "reduced"}},
                                                     {"all_reduce", {"all-reduce issued", "all-reduced"}},
                                                     {"broadcast", {"broadcast issued", "broadcast done"}},
                                                     {"shift", {"shift issued", "shifted"}}};
  auto found = words.find(op);
  return found == words.end() ? Words{concat(op, " issued"), concat(op, " done")} : found->second;
}

std::string took(const comm::TraceEvent& event) { return milliseconds(*event.done_us - event.begin_us()); }

void add_lines(const comm::TraceEvent& event, std::vector<TimelineLine>& lines) {
  const auto add = [&](double at_us, const std::string& what, std::string detail) {
    lines.push_back({.at_us = at_us, .unit = event.unit, .what = what, .detail = std::move(detail)});
  };
  if (event.is_buffer()) {
    if (event.pass_or_event == "free" && event.buffer_kind == "parameters") {
      add(event.issue_us, "freed", util::human_bytes(event.bytes));
    }
  } else if (event.is_compute()) {
    add(event.issue_us, event.pass_or_event == "recompute" ? "forward again" : event.pass_or_event,
        event.done_us ? took(event) : "to the end of the pass");
  } else {
    const Words words = words_for(event.op);
    const std::string where =
        event.pass_or_event == shard::kBetweenSlices ? concat(" ", shard::kBetweenSlices) : "";
    add(event.issue_us, words.issued, util::human_bytes(event.bytes) + where);
    if (!event.done_us) return;
    const double waited = event.waited_us();
    add(*event.done_us, words.done,
        concat(took(event), waited > 0 ? concat(", waited ", milliseconds(waited)) : ", hidden", where));
  }
}

/// Live bytes at points of time: sums of the events of buffers.
class LiveBytes {
 public:
  explicit LiveBytes(const std::vector<comm::TraceEvent>& events) {
    int64_t live = 0;
    for (const auto& event : events) {
      if (event.is_buffer()) steps_.emplace_back(event.issue_us, live += event.bytes_added());
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

std::string line_of(const TimelineLine& line, double begin_us, int unit_width) {
  return util::printed("%10.2f  %-*s  %-17s  %-30s  %s\n", (line.at_us - begin_us) / 1000, unit_width,
                       line.unit.c_str(), line.what.c_str(), line.detail.c_str(),
                       util::human_bytes(line.live_bytes).c_str());
}

std::vector<TimelineLine> without(const std::vector<TimelineLine>& lines,
                                  const std::set<std::string>& hidden) {
  std::vector<TimelineLine> shown;
  std::copy_if(lines.begin(), lines.end(), std::back_inserter(shown),
               [&](const TimelineLine& line) { return !hidden.contains(line.unit); });
  return shown;
}

/// Returns indices into `lines`. A micro-batch begins with the forward of the root, or with the gathers for
/// it.
std::vector<size_t> begins_of_micro_batches(const std::vector<TimelineLine>& lines, const std::string& root) {
  std::vector<size_t> begins;
  for (size_t i = 0; i < lines.size(); ++i) {
    if (lines[i].what != "forward" || lines[i].unit != root) continue;
    size_t begin = i;
    while (begin > 0 && lines[begin - 1].what.starts_with("gather")) --begin;
    begins.push_back(begin);
  }
  return begins;
}

/// Returns the lines within the limits. `note`: description of the lines that were left out.
std::vector<TimelineLine> select(std::vector<TimelineLine> lines, const TimelineLimits& limits,
                                 std::string& note) {
  if (limits.most_lines == 0 || lines.size() <= limits.most_lines) return lines;
  std::vector<std::string> left_out;
  std::vector<size_t> micro_batches = begins_of_micro_batches(lines, limits.units.front());
  if (micro_batches.size() > 1) {
    lines.erase(lines.begin(), lines.begin() + static_cast<std::ptrdiff_t>(micro_batches.back()));
    size_t count = micro_batches.size();
    left_out.push_back(count == 2 ? std::string("micro-batch 1 of 2")
                                  : concat("micro-batches 1 to ", count - 1, " of ", count));
  }
  const size_t inner = limits.units.size() - limits.root_units;
  for (size_t ends = inner > 2 ? (inner - 1) / 2 : 0; ends > 0 && lines.size() > limits.most_lines; --ends) {
    auto first = limits.units.begin() + static_cast<std::ptrdiff_t>(limits.root_units + ends);
    auto last = limits.units.end() - static_cast<std::ptrdiff_t>(ends + 1);
    auto shown = without(lines, {first, last + 1});
    if (shown.size() > limits.most_lines && ends > 1) continue;
    lines = std::move(shown);
    left_out.push_back(first == last ? concat("unit ", *first)
                                     : concat("the units from ", *first, " to ", *last));
  }
  if (!left_out.empty())
    note = concat("not shown: ", util::join(left_out, "; "), " (`all_units` shows everything)\n");
  return lines;
}

}  // namespace

std::string milliseconds(double us) { return util::printed("%.2f ms", us / 1000); }

std::vector<TimelineLine> timeline_of(const StepRecord& step) {
  std::vector<TimelineLine> lines;
  for (const comm::TraceEvent& event : step.events) add_lines(event, lines);
  lines.push_back({.at_us = step.end_us, .unit = "step", .what = "ends"});
  std::stable_sort(lines.begin(), lines.end(),
                   [](const TimelineLine& a, const TimelineLine& b) { return a.at_us < b.at_us; });
  LiveBytes live(step.events);
  for (TimelineLine& line : lines) line.live_bytes = live.at(line.at_us);
  return lines;
}

std::string timeline_text(const StepRecord& step, const TimelineLimits& limits) {
  std::string note;
  std::vector<TimelineLine> lines = select(timeline_of(step), limits, note);
  size_t width = 4;
  for (const TimelineLine& line : lines) width = std::max(width, line.unit.size());
  int unit_width = static_cast<int>(std::min<size_t>(width, 60));
  std::string text = util::printed("%10s  %-*s  %-17s  %-30s  %s\n", "ms", unit_width, "unit", "event",
                                   "payload or duration", "live after it");
  for (const TimelineLine& line : lines) text += line_of(line, step.begin_us, unit_width);
  return text + note;
}

shard::Traffic traffic_of(const comm::TraceEvent& event) {
  shard::Traffic traffic;
  for (const shard::TrafficKind& kind : shard::kTrafficKinds) {
    if (event.op != kind.op) continue;
    traffic.*kind.number = 1;
    traffic.*kind.bytes = event.bytes;
  }
  return traffic;
}

CommunicationTime communication_time(const StepRecord& step) {
  CommunicationTime time;
  for (const auto& event : step.events) {
    if (!event.is_collective() || !event.done_us) continue;
    time.total_us += *event.done_us - event.begin_us();
    time.exposed_us += event.waited_us();
  }
  return time;
}

}  // namespace fsdp::train
