#include "report/chart.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <set>
#include <utility>

#include "util/error.h"
#include "util/text.h"

namespace fsdp::report {

using comm::TraceEvent;
using util::concat;

namespace {

constexpr double kTicks = 5;  // about

/// 1, 2 or 5 times a power of ten.
double round_step(double span) {
  const double rough = span / kTicks;
  const double power = std::pow(10, std::floor(std::log10(rough)));
  for (double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= rough) return factor * power;
  }
  return 10 * power;
}

std::string printed(const char* format, int digits, double value) {
  char text[64];
  std::snprintf(text, sizeof(text), format, digits, value);
  return text;
}

/// The largest binary unit of which `bytes` holds one.
struct BinaryUnit {
  double bytes;
  const char* name;
};

BinaryUnit binary_unit(double bytes) {
  static constexpr BinaryUnit kUnits[] = {
      {1, "B"}, {1024.0, "KiB"}, {1048576.0, "MiB"}, {1073741824.0, "GiB"}, {1099511627776.0, "TiB"}};
  BinaryUnit unit = kUnits[0];
  for (const BinaryUnit& larger : kUnits) {
    if (bytes >= larger.bytes) unit = larger;
  }
  return unit;
}

/// Maps values to places along a line of the figure, with ticks at round numbers.
class Axis {
 public:
  enum class Ends { kOfTheValues, kOfTheTicks };

  /// `places`: of the lowest and the highest value. `whole`: ticks at whole numbers only. Ticks are round in
  /// multiples of `unit`.
  Axis(double low, double high, std::pair<double, double> places, Ends ends, bool whole, double unit = 1)
      : low_(low / unit), high_(high / unit), places_(places), unit_(unit) {
    // Differences of larger numbers would overflow; equal values get a margin.
    low_ = std::clamp(low_, -1e300, 1e300);
    high_ = std::clamp(high_, -1e300, 1e300);
    if (!(high_ - low_ > 1e-12 * std::max(std::abs(low_), std::abs(high_)))) {
      const double margin = low_ == 0 ? 1 : std::abs(low_) * 0.5;
      high_ = low_ + margin;
      if (!whole) low_ -= margin;
    }
    step_ = round_step(high_ - low_);
    if (whole) step_ = std::max(1.0, std::round(step_));
    if (ends == Ends::kOfTheTicks) {
      low_ = std::floor(low_ / step_ + 1e-9) * step_;
      high_ = std::ceil(high_ / step_ - 1e-9) * step_;
    }
    for (double tick = std::ceil(low_ / step_ - 1e-9);
         tick * step_ <= high_ + 1e-9 * step_ && ticks_.size() < 20; ++tick) {
      ticks_.push_back(tick * step_ * unit_ + 0.0);  // + 0.0: no "-0"
    }
  }

  double place(double value) const {
    const double share = (std::clamp(value / unit_, -1e300, 1e300) - low_) / (high_ - low_);
    return places_.first + share * (places_.second - places_.first);
  }
  const std::vector<double>& ticks() const { return ticks_; }
  double tick_step() const { return step_; }
  double unit() const { return unit_; }

 private:
  double low_, high_;
  std::pair<double, double> places_;
  double unit_;
  double step_ = 1;
  std::vector<double> ticks_;
};

/// A number of SVG.
std::string coordinate(double value) { return printed("%.*f", 1, std::clamp(value, -1e6, 1e6)); }

/// With as many digits as neighbouring ticks differ in.
std::string tick_text(double value, Scale scale, const Axis& axis) {
  if (scale == Scale::kBytes) {
    const BinaryUnit unit = binary_unit(axis.unit());
    return util::concat(value_text(value / unit.bytes, Scale::kNumber), " ", unit.name);
  }
  if (scale == Scale::kPercent) return value_text(value, scale);
  if (value == 0) return "0";
  const double size = std::abs(value);
  if (size >= 1e7 || size < 1e-4) return printed("%.*g", 3, value);
  const int digits = std::clamp(static_cast<int>(-std::floor(std::log10(axis.tick_step()) + 1e-9)), 0, 9);
  return digits == 0 ? util::with_commas(std::llround(value)) : printed("%.*f", digits, value);
}

constexpr double kWidth = 560, kHeight = 240, kLeft = 64, kRight = 14, kTop = 12, kBottom = 30;
constexpr size_t kMostPoints = 1200;

/// The lowest and the highest point of each part, in the order of the steps.
std::vector<Point> thinned(const std::vector<Point>& points) {
  if (points.size() <= kMostPoints) return points;
  std::vector<Point> kept;
  const size_t parts = kMostPoints / 2;
  for (size_t part = 0; part < parts; ++part) {
    const auto begin = points.begin() + static_cast<int64_t>(points.size() * part / parts);
    const auto end = points.begin() + static_cast<int64_t>(points.size() * (part + 1) / parts);
    auto [low, high] =
        std::minmax_element(begin, end, [](const Point& a, const Point& b) { return a.y < b.y; });
    if (high < low) std::swap(low, high);
    kept.push_back(*low);
    if (high != low) kept.push_back(*high);
  }
  return kept;
}

}  // namespace

std::string value_text(double value, Scale scale) {
  if (scale == Scale::kBytes) return util::human_bytes(static_cast<int64_t>(std::clamp(value, 0.0, 9e18)));
  if (scale == Scale::kPercent) return printed("%.*g", 4, 100 * value) + "%";
  if (std::abs(value) >= 1e4 && std::abs(value) < 1e15) return util::with_commas(std::llround(value));
  return printed("%.*g", 4, value);
}

std::string line_chart(const std::vector<Curve>& curves, const ChartOptions& options) {
  double x_low = INFINITY, x_high = -INFINITY, y_low = INFINITY, y_high = -INFINITY;
  for (const Curve& curve : curves) {
    for (const Point& point : curve.points) {
      x_low = std::min(x_low, point.x);
      x_high = std::max(x_high, point.x);
      y_low = std::min(y_low, point.y);
      y_high = std::max(y_high, point.y);
    }
  }
  if (x_low > x_high) return "";
  if (options.from_zero) y_low = std::min(y_low, 0.0);
  const Axis x(x_low, x_high, {kLeft, kWidth - kRight}, Axis::Ends::kOfTheValues, /*whole=*/true);
  const Axis y(y_low, y_high, {kHeight - kBottom, kTop}, Axis::Ends::kOfTheTicks, /*whole=*/false,
               options.scale == Scale::kBytes ? binary_unit(y_high).bytes : 1);

  std::string svg = concat("<svg viewBox=\"0 0 ", kWidth, " ", kHeight, "\" role=\"img\" aria-label=\"",
                           escaped(options.label), "\">");
  for (double tick : y.ticks()) {
    const std::string at = coordinate(y.place(tick));
    svg += concat("<line class=\"grid\" x1=\"", kLeft, "\" x2=\"", kWidth - kRight, "\" y1=\"", at,
                  "\" y2=\"", at, "\"/><text class=\"tick end\" x=\"", kLeft - 8, "\" y=\"", at,
                  "\" dy=\"4\">", tick_text(tick, options.scale, y), "</text>");
  }
  for (double tick : x.ticks()) {
    svg += concat("<text class=\"tick middle\" x=\"", coordinate(x.place(tick)), "\" y=\"", kHeight - 10,
                  "\">", tick_text(tick, Scale::kNumber, x), "</text>");
  }
  for (size_t i = 0; i < curves.size(); ++i) {
    const std::vector<Point> points = thinned(curves[i].points);
    std::string path;
    for (const Point& point : points) {
      path +=
          concat(path.empty() ? "M" : "L", coordinate(x.place(point.x)), " ", coordinate(y.place(point.y)));
    }
    if (points.size() > 1) svg += concat("<path class=\"curve c", i, "\" d=\"", path, "\"/>");
    if (points.size() > 40) continue;
    for (const Point& point : points) {
      svg += concat("<circle class=\"dot c", i, "\" r=\"3\" cx=\"", coordinate(x.place(point.x)), "\" cy=\"",
                    coordinate(y.place(point.y)), "\"><title>", escaped(curves[i].name), " at step ",
                    static_cast<int64_t>(point.x), ": ", value_text(point.y, options.scale),
                    "</title></circle>");
    }
  }
  return svg + "</svg>";
}

namespace {

constexpr double kTimelineWidth = 1160, kTimelineLeft = 190, kTimelineRight = 14, kTimelineTop = 6, kRow = 18,
                 kTimelineBottom = 26;
constexpr size_t kMostRows = 72, kMostName = 28;

/// The style sheet's class of a kind of collective.
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

/// Units in the order of their first collectives; of very many, the first and the last.
std::vector<std::string> rows_of(const StepTrace& trace) {
  std::vector<std::string> units;
  std::set<std::string> seen;
  for (const TraceEvent& event : trace.events) {
    if (event.is_collective() && seen.insert(event.unit).second) units.push_back(event.unit);
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
  for (const TraceEvent& event : trace.events) {
    if (!event.is_collective()) continue;
    begin = std::min(begin, event.begin_us());
    end = std::max(end, *event.done_us);
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
  auto bar = [&](const TraceEvent& event, const char* css, double from_us, double to_us, double inset,
                 const std::string& says) {
    const double x = place(from_us), top = tops[event.unit];
    svg += concat("<rect class=\"", css, "\" x=\"", coordinate(x), "\" y=\"", coordinate(top + inset),
                  "\" width=\"", coordinate(std::max(place(to_us) - x, 0.7)), "\" height=\"",
                  coordinate(kRow - 2 * inset), "\" rx=\"1.5\">",
                  says.empty() ? "" : concat("<title>", escaped(says), "</title>"), "</rect>");
  };
  std::map<std::string, double> allocated;
  for (const TraceEvent& event : trace.events) {
    if (!event.is_buffer() || !tops.contains(event.unit)) continue;
    if (event.pass_or_event == "allocate") {
      allocated[event.unit] = event.issue_us;
    } else if (const auto since = allocated.extract(event.unit); since && event.issue_us >= since.mapped()) {
      bar(event, "held", since.mapped(), event.issue_us, 1.5, "");
    }
  }
  for (const TraceEvent& event : trace.events) {
    if (!event.is_collective() || !tops.contains(event.unit)) continue;
    const double begin_us = event.begin_us(), done_us = *event.done_us;
    std::string says = concat(event.op, " of ", event.unit, ", ", event.pass_or_event, ": ",
                              util::human_bytes(event.bytes), " in ", milliseconds(done_us - begin_us));
    if (event.waited_us() == 0) {
      bar(event, class_of(event.op), begin_us, done_us, 3.5, says);
      continue;
    }
    const double waited_from = std::max(*event.wait_us, begin_us);
    says += ", waited for " + milliseconds(done_us - waited_from);
    bar(event, class_of(event.op), begin_us, done_us, 3.5, says);
    bar(event, "waited", waited_from, done_us, 8, says);
  }
  return svg + "</svg>";
}

}  // namespace fsdp::report
