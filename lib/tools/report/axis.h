#pragma once

// Axes of figures: coordinates of values, round ticks and their texts.

#include <string>
#include <utility>
#include <vector>

namespace fsdp::report {

enum class Scale { kNumber, kBytes, kPercent };

/// Maps values to coordinates along a line of the figure, with ticks at round numbers.
class Axis {
 public:
  enum class Ends { kOfTheValues, kOfTheTicks };

  /// `places`: coordinates of the lowest and the highest value. `whole`: ticks at whole numbers only. Ticks
  /// are round multiples of `unit`.
  Axis(double low, double high, std::pair<double, double> places, Ends ends, bool whole, double unit = 1);

  double place(double value) const;
  const std::vector<double>& ticks() const { return ticks_; }
  /// Text of a tick, with enough digits to tell neighbouring ticks apart.
  std::string tick_text(double value, Scale scale) const;

 private:
  double low_, high_;
  std::pair<double, double> places_;
  double unit_;
  double step_ = 1;
  std::vector<double> ticks_;
};

/// The largest binary unit that is at most `bytes`, in bytes.
double binary_unit(double bytes);

/// Text of a number that stands alone, with four significant digits.
std::string value_text(double value, Scale scale);

/// Text of a coordinate in SVG.
std::string coordinate(double value);

}  // namespace fsdp::report
