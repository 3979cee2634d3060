#include "tools/report/chart.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>

#include "base/util/error.h"
#include "tools/report/html.h"

namespace fsdp::report {

namespace {

constexpr double kWidth = 560, kHeight = 240, kLeft = 64, kRight = 14, kTop = 12, kBottom = 30;
constexpr size_t kMostPoints = 1200, kMostDots = 80;

/// The lowest and the highest point of each section, in the order of the steps.
std::vector<CurvePoint> thinned(const std::vector<CurvePoint>& points) {
  if (points.size() <= kMostPoints) return points;
  std::vector<CurvePoint> kept;
  const size_t parts = kMostPoints / 2;
  for (size_t part = 0; part < parts; ++part) {
    const auto begin = points.begin() + static_cast<int64_t>(points.size() * part / parts);
    const auto end = points.begin() + static_cast<int64_t>(points.size() * (part + 1) / parts);
    auto [low, high] =
        std::minmax_element(begin, end, [](const CurvePoint& a, const CurvePoint& b) { return a.y < b.y; });
    if (high < low) std::swap(low, high);
    kept.push_back(*low);
    if (high != low) kept.push_back(*high);
  }
  return kept;
}

}  // namespace

std::string line_chart(const std::vector<Curve>& curves, const ChartOptions& options) {
  double x_low = INFINITY, x_high = -INFINITY, y_low = INFINITY, y_high = -INFINITY;
  for (const Curve& curve : curves) {
    for (const CurvePoint& point : curve.points) {
      x_low = std::min(x_low, point.x);
      x_high = std::max(x_high, point.x);
      y_low = std::min(y_low, point.y);
      y_high = std::max(y_high, point.y);
    }
  }
  if (x_low > x_high) return "";
  if (options.from_zero) y_low = std::min(y_low, 0.0);
  const Axis x(x_low, x_high, {kLeft, kWidth - kRight}, Axis::Ends::kOfTheValues, options.x_is_step);
  const Axis y(y_low, y_high, {kHeight - kBottom, kTop}, Axis::Ends::kOfTheTicks, /*whole=*/false,
               options.scale == Scale::kBytes ? binary_unit(y_high) : 1);

  std::string svg = concat("<svg viewBox=\"0 0 ", kWidth, " ", kHeight, "\" role=\"img\" aria-label=\"",
                           escaped(options.label), "\">");
  for (double tick : y.ticks()) {
    const std::string at = coordinate(y.place(tick));
    svg += concat("<line class=\"grid\" x1=\"", kLeft, "\" x2=\"", kWidth - kRight, "\" y1=\"", at,
                  "\" y2=\"", at, "\"/><text class=\"tick end\" x=\"", kLeft - 8, "\" y=\"", at,
                  "\" dy=\"4\">", y.tick_text(tick, options.scale), "</text>");
  }
  for (double tick : x.ticks()) {
    svg += concat("<text class=\"tick middle\" x=\"", coordinate(x.place(tick)), "\" y=\"", kHeight - 10,
                  "\">", x.tick_text(tick, Scale::kNumber), "</text>");
  }
  for (size_t i = 0; i < curves.size(); ++i) {
    const std::vector<CurvePoint> points = thinned(curves[i].points);
    std::string path;
    for (const CurvePoint& point : points) {
      path +=
          concat(path.empty() ? "M" : "L", coordinate(x.place(point.x)), " ", coordinate(y.place(point.y)));
    }
    if (points.size() > 1) svg += concat("<path class=\"curve c", i, "\" d=\"", path, "\"/>");
    if (points.size() * curves.size() > kMostDots) continue;
    for (const CurvePoint& point : points) {
      svg += concat("<circle class=\"dot c", i, "\" r=\"3\" cx=\"", coordinate(x.place(point.x)), "\" cy=\"",
                    coordinate(y.place(point.y)), "\"><title>", escaped(curves[i].name), " at ",
                    options.x_is_step ? concat("step ", static_cast<int64_t>(point.x))
                                      : value_text(point.x, Scale::kNumber),
                    ": ", value_text(point.y, options.scale), "</title></circle>");
    }
  }
  return svg + "</svg>";
}

}  // namespace fsdp::report
