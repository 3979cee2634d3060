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
  std::string label;  ///< for screen readers
  Scale scale = Scale::kNumber;
  bool from_zero = false;  ///< the axis includes 0
};

/// At most two curves (of as many colours) over the steps. Of very many points, the lowest and the highest of
/// each part are drawn. Empty when no curve has a point.
std::string line_chart(const std::vector<Curve>& curves, const ChartOptions& options);

/// Collectives of units as bars, a row a unit, over the time in milliseconds; empty when there are none.
std::string timeline_chart(const StepTrace& trace);

/// A number on its own, with four significant digits.
std::string value_text(double value, Scale scale);

/// Escapes text for HTML, between tags or in quotes.
std::string escaped(std::string_view text);

}  // namespace fsdp::report
