#pragma once

// Curves as inline SVG. Colours and dashes are classes (style.h).

#include <cstddef>
#include <string>
#include <vector>

#include "tools/report/axis.h"
#include "tools/report/run_record.h"

namespace fsdp::report {

struct Curve {
  std::string name;
  std::vector<CurvePoint> points;
};

struct ChartOptions {
  std::string label;  ///< label for screen readers
  Scale scale = Scale::kNumber;
  bool from_zero = false;  ///< whether the axis includes 0
  bool x_is_step = true;   ///< whether x is a step; false: any number
};

/// Number of curves in a figure that a reader can tell apart.
inline constexpr size_t kMostCurves = 8;

/// A chart of at most kMostCurves curves. A curve with very many points is drawn by the lowest and the
/// highest point of each section. Empty if no curve has a point.
std::string line_chart(const std::vector<Curve>& curves, const ChartOptions& options);

}  // namespace fsdp::report
