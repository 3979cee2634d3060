#pragma once

// Axes of figures: places of values, round ticks and their texts.

#include <string>
#include <utility>
#include <vector>

namespace fsdp::report {

enum class Scale { kNumber, kBytes, kPercent };

/// Maps values to places along a line of the figure, with ticks at round numbers.
class Axis {
 public:
  enum class Ends { kOfTheValues, kOfTheTicks };

  /// `places`: of the lowest and the highest value. `whole`: ticks at whole numbers only. Ticks are round in
  /// multiples of `unit`.
  Axis(double low, double high, std::pair<double, double> places, Ends ends, bool whole, double unit = 1);

  double place(double value) const;
  const std::vector<double>& ticks() const { return ticks_; }
  /// With as many digits as neighbouring ticks differ in.
  std::string tick_text(double value, Scale scale) const;

 private:
  double low_, high_;
  std::pair<double, double> places_;
  double unit_;
  double step_ = 1;
  std::vector<double> ticks_;
};

/// The largest binary unit of which `bytes` holds one, in bytes.
double binary_unit(double bytes);

/// A number on its own, with four significant digits.
std::string value_text(double value, Scale scale);

/// A coordinate of SVG.
std::string coordinate(double value);

}  // namespace fsdp::report
