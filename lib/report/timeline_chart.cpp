#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "report/axis.h"
#include "report/chart.h"
#include "util/error.h"
#include "util/text.h"

namespace fsdp::report {
namespace {

using util::concat;

constexpr double kTimelineWidth = 1160, kTimelineLeft = 190, kTimelineRight = 14, kTimelineTop = 6, kRow = 18,
                 kTimelineBottom = 26;
constexpr size_t kMostRows = 72, kMostName = 28;

/// A class of the style sheet for each kind of collective.
const char* class_of(const std::string& op) {
  if (op == "all_gather") return "gather";
  if (op == "reduce_scatter") return "reduce";
  return "other";
}

std::string shortened(const std::string& name) {
  if (name.empty()) return "(root)";
  if (name.size() <= kMostName) return name;
  size_t begin = name.size() - kMostName + 3;
  while (begin < name.size() && (static_cast<unsigned char>(name[begin]) & 0xc0) == 0x80) ++begin;
  return "..." + name.substr(begin);
}

/// Units in the order in which they come first; of very many, those of the beginning and of the end.
std::vector<std::string> rows_of(const StepTrace& trace) {
  std::vector<std::string> units;
  std::map<std::string, bool> seen;
  for (const Span& span : trace.spans) {
    if (span.op != "buffer" && !std::exchange(seen[span.unit], true)) units.push_back(span.unit);
  }
  if (units.size() <= kMostRows) return units;
  units.erase(units.begin() + kMostRows / 2, units.end() - kMostRows / 2);
  return units;
}

std::string milliseconds(double us) { return value_text(us / 1000, Scale::kNumber) + " ms"; }

}  // namespace

std::string timeline_chart(const StepTrace& trace) {
  const std::vector<std::string> units = rows_of(trace);
  if (units.empty()) return "";
  std::map<std::string, double> tops;
  for (const std::string& unit : units) tops[unit] = kTimelineTop + kRow * static_cast<double>(tops.size());
  double begin = INFINITY, end = -INFINITY;
  for (const Span& span : trace.spans) {
    if (span.op == "buffer") continue;
    begin = std::min(begin, span.begin_us);
    end = std::max(end, span.end_us);
  }
  const Axis time(0, (end - begin) / 1000, {kTimelineLeft, kTimelineWidth - kTimelineRight},
                  Axis::Ends::kOfTheValues,
                  /*whole=*/false);
  auto place = [&](double us) { return time.place(std::clamp(us - begin, 0.0, end - begin) / 1000); };
  const double bottom = kTimelineTop + kRow * static_cast<double>(units.size());

  std::string svg = concat("<svg viewBox=\"0 0 ", kTimelineWidth, " ", bottom + kTimelineBottom,
                           "\" role=\"img\" aria-label=\"communication of step ", trace.step, "\">");
  for (double tick : time.ticks()) {
    const std::string at = coordinate(time.place(tick));
    svg += concat("<line class=\"grid\" x1=\"", at, "\" x2=\"", at, "\" y1=\"", kTimelineTop, "\" y2=\"",
                  bottom, "\"/><text class=\"tick middle\" x=\"", at, "\" y=\"", bottom + 16, "\">",
                  tick_text(tick, Scale::kNumber, time), " ms</text>");
  }
  for (const std::string& unit : units) {
    svg += concat("<text class=\"tick end\" x=\"", kTimelineLeft - 8, "\" y=\"", tops[unit] + 13, "\">",
                  escaped(shortened(unit)), "<title>", escaped(unit), "</title></text>");
  }
  auto bar = [&](const Span& span, const char* css, double from, double inset, const std::string& says) {
    const double x = place(from), top = tops[span.unit];
    svg += concat("<rect class=\"", css, "\" x=\"", coordinate(x), "\" y=\"", coordinate(top + inset),
                  "\" width=\"", coordinate(std::max(place(span.end_us) - x, 0.7)), "\" height=\"",
                  coordinate(kRow - 2 * inset), "\" rx=\"1.5\">",
                  says.empty() ? "" : concat("<title>", escaped(says), "</title>"), "</rect>");
  };
  for (const Span& span : trace.spans) {
    if (span.op == "buffer" && tops.contains(span.unit)) bar(span, "held", span.begin_us, 1.5, "");
  }
  for (const Span& span : trace.spans) {
    if (span.op == "buffer" || !tops.contains(span.unit)) continue;
    std::string says =
        concat(span.op, " of ", span.unit, ", ", span.pass, ": ", util::human_bytes(span.bytes), " in ",
               milliseconds(span.end_us - span.begin_us));
    if (span.waited_from_us) says += ", waited for " + milliseconds(span.end_us - *span.waited_from_us);
    bar(span, class_of(span.op), span.begin_us, 3.5, says);
    if (span.waited_from_us) bar(span, "waited", *span.waited_from_us, 8, says);
  }
  return svg + "</svg>";
}

}  // namespace fsdp::report
