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
  std::vector<Point> points;
};

struct ChartOptions {
  std::string label;  ///< for screen readers
  Scale scale = Scale::kNumber;
  bool from_zero = false;  ///< the axis includes 0
  bool x_is_step = true;   ///< else any number
};

/// How many curves of a figure can be told from each other.
inline constexpr size_t kMostCurves = 8;

/// At most kMostCurves. Of very many points, the lowest and the highest of each part are drawn. Empty when no
/// curve has a point.
std::string line_chart(const std::vector<Curve>& curves, const ChartOptions& options);

}  // namespace fsdp::report
