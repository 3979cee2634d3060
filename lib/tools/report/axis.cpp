#include "tools/report/axis.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>

#include "base/util/error.h"
#include "base/util/text.h"

namespace fsdp::report {
namespace {

using util::printed;

constexpr double kTicks = 5;  // approximate number of ticks

/// 1, 2 or 5 times a power of ten.
double round_step(double span) {
  const double rough = span / kTicks;
  const double power = std::pow(10, std::floor(std::log10(rough)));
  for (double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= rough) return factor * power;
  }
  return 10 * power;
}

struct BinaryUnit {
  double bytes;
  const char* name;
};

BinaryUnit named_binary_unit(double bytes) {
  static constexpr BinaryUnit kUnits[] = {
      {1, "B"}, {1024.0, "KiB"}, {1048576.0, "MiB"}, {1073741824.0, "GiB"}, {1099511627776.0, "TiB"}};
  BinaryUnit unit = kUnits[0];
  for (const BinaryUnit& larger : kUnits) {
    if (bytes >= larger.bytes) unit = larger;
  }
  return unit;
}

}  // namespace

Axis::Axis(double low, double high, std::pair<double, double> places, Ends ends, bool whole, double unit)
    : low_(low / unit), high_(high / unit), places_(places), unit_(unit) {
  // Differences of larger numbers would overflow. Equal values get a margin.
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

double Axis::place(double value) const {
  const double share = (std::clamp(value / unit_, -1e300, 1e300) - low_) / (high_ - low_);
  return places_.first + share * (places_.second - places_.first);
}

std::string Axis::tick_text(double value, Scale scale) const {
  if (scale == Scale::kBytes) {
    const BinaryUnit unit = named_binary_unit(unit_);
    return concat(value_text(value / unit.bytes, Scale::kNumber), " ", unit.name);
  }
  if (scale == Scale::kPercent) return value_text(value, scale);
  if (value == 0) return "0";
  const double size = std::abs(value);
  if (size >= 1e7 || size < 1e-4) return printed("%.*g", 3, value);
  const int digits = std::clamp(static_cast<int>(-std::floor(std::log10(step_) + 1e-9)), 0, 9);
  return digits == 0 ? util::with_commas(std::llround(value)) : printed("%.*f", digits, value);
}

double binary_unit(double bytes) { return named_binary_unit(bytes).bytes; }

std::string value_text(double value, Scale scale) {
  if (scale == Scale::kBytes) return util::human_bytes(static_cast<int64_t>(std::clamp(value, 0.0, 9e18)));
  if (scale == Scale::kPercent) return printed("%.*g", 4, 100 * value) + "%";
  if (std::abs(value) >= 1e4 && std::abs(value) < 1e15) return util::with_commas(std::llround(value));
  return printed("%.*g", 4, value);
}

std::string coordinate(double value) {
  std::string text = printed("%.*f", 1, std::clamp(value, -1e6, 1e6));
  if (text.ends_with(".0")) text.resize(text.size() - 2);
  return text;
}

}  // namespace fsdp::report
