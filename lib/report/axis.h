#pragma once

#include <string>
#include <utility>
#include <vector>

#include "report/chart.h"

namespace fsdp::report {

/// Places values along a line of the figure, with ticks at round numbers.
class Axis {
 public:
  enum class Ends { kOfTheValues, kOfTheTicks };

  /// `places`: where the lowest and the highest value go. `whole`: ticks at whole numbers only. Ticks are
  /// round in multiples of `unit`.
  Axis(double low, double high, std::pair<double, double> places, Ends ends, bool whole, double unit = 1);

  double place(double value) const;
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

struct BinaryUnit {
  double bytes;
  const char* name;
};
/// MiB for a number of bytes of about that size.
BinaryUnit binary_unit(double bytes);

/// A number of SVG.
std::string coordinate(double value);

/// A tick's number, with as many digits as its neighbours differ in.
std::string tick_text(double value, Scale scale, const Axis& axis);

/// A number by itself: four digits that count.
std::string value_text(double value, Scale scale);

}  // namespace fsdp::report
