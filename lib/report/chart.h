#pragma once

// Figures as inline SVG. Colours are classes, which the page's style sheet gives for a light and a dark
// background.

#include <string>
#include <vector>

#include "report/run_record.h"

namespace fsdp::report {

enum class Scale { kNumber, kBytes, kPercent };

struct Curve {
  std::string name;
  std::vector<Point> points;
};

struct ChartOptions {
  std::string label;  ///< for those who do not see it
  Scale scale = Scale::kNumber;
  bool from_zero = false;  ///< the axis begins at 0, whatever the values
};

/// Curves over the steps, at most as many as there are colours (2). Of very many points the lowest and the
/// highest of each part are drawn. Empty when no curve has a point.
std::string line_chart(const std::vector<Curve>& curves, const ChartOptions& options);

/// Units as rows, time in milliseconds from left to right.
std::string timeline_chart(const StepTrace& trace);

/// Fit to stand in HTML, between tags or in quotes.
std::string escaped(std::string_view text);

}  // namespace fsdp::report
