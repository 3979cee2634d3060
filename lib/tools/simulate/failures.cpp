#include "tools/simulate/failures.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace fsdp::simulate {
namespace {

/// The point at which `is_above` becomes true.
double crossing(double low, double high, const std::function<bool(double)>& is_above) {
  constexpr int kHalvings = 60;
  for (int i = 0; i < kHalvings; ++i) {
    const double middle = (low + high) / 2;
    (is_above(middle) ? high : low) = middle;
  }
  return (low + high) / 2;
}

/// The probability that a host takes at most exp(y) times as long.
double share_of_hosts(const Stragglers& stragglers, double y) {
  const double sigma = std::max(stragglers.sigma, std::numeric_limits<double>::min());
  const auto below = [sigma](double x) { return 0.5 * std::erfc(-x / sigma / std::sqrt(2.0)); };
  return (1 - stragglers.slow_share) * below(y) +
         stragglers.slow_share * below(y - std::log(stragglers.slow_factor));
}

}  // namespace

double effective_share(const Faults& faults, double interval_seconds) {
  const double mean = faults.mean_seconds, whole = interval_seconds + faults.checkpoint_seconds;
  return interval_seconds * std::exp(-faults.restart_seconds / mean) / (mean * std::expm1(whole / mean));
}

double best_interval(const Faults& faults, double step_seconds) {
  // The share is largest where its derivative is zero.
  const double mean = faults.mean_seconds;
  const double best = crossing(0, mean, [&](double interval) {
    return 1 - interval / mean < std::exp(-(interval + faults.checkpoint_seconds) / mean);
  });
  return step_seconds * std::max(1.0, std::round(best / step_seconds));
}

double mean_step_seconds(const Stragglers& stragglers, int64_t hosts,
                         const std::function<double(double slowness)>& seconds_at) {
  constexpr int kParts = 100;  ///< parts of the distribution of the slowest host, all equally probable
  const double most = std::log(stragglers.slow_factor) + 40 * stragglers.sigma;
  double sum = 0;
  for (int part = 0; part < kParts; ++part) {
    // The slowest of n hosts is below y with the probability F(y)^n.
    const double share = std::pow((part + 0.5) / kParts, 1 / static_cast<double>(hosts));
    const double y = crossing(-40 * stragglers.sigma, most,
                              [&](double at) { return share_of_hosts(stragglers, at) >= share; });
    sum += seconds_at(std::exp(y));
  }
  return sum / kParts;
}

}  // namespace fsdp::simulate
