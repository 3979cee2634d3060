#include "simulate/failures.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

namespace fsdp::simulate {
namespace {

/// In [0, 1), the same numbers everywhere: std::uniform_real_distribution is not the same in all libraries.
double uniform(std::mt19937_64& source) { return static_cast<double>(source() >> 11) * 0x1p-53; }

/// Times between faults.
std::vector<double> gaps_of(const Faults& faults) {
  std::mt19937_64 source(faults.seed);
  std::vector<double> gaps;
  for (int64_t i = 0; i < faults.draws; ++i)
    gaps.push_back(-faults.mean_seconds * std::log1p(-uniform(source)));
  return gaps;
}

double effective_share(const Faults& faults, const std::vector<double>& gaps, double interval) {
  double elapsed = 0, useful = 0;
  for (const double gap : gaps) {
    elapsed += gap;
    const double running = std::max(0.0, gap - faults.restart_seconds);
    useful += interval * std::floor(running / (interval + faults.checkpoint_seconds));
  }
  return elapsed > 0 ? useful / elapsed : 0;
}

/// z of the normal distribution of which a share `p` is below.
double normal_quantile(double p) {
  double low = -40, high = 40;
  for (int i = 0; i < 100; ++i) {
    const double middle = (low + high) / 2;
    (0.5 * std::erfc(-middle / std::sqrt(2.0)) < p ? low : high) = middle;
  }
  return (low + high) / 2;
}

}  // namespace

double mean_seconds_between_faults(double mtbf_seconds, int64_t hosts) {
  return mtbf_seconds / static_cast<double>(std::max<int64_t>(1, hosts));
}

double effective_share(const Faults& faults, double interval_seconds) {
  return effective_share(faults, gaps_of(faults), interval_seconds);
}

double expected_effective_share(const Faults& faults, double interval_seconds) {
  const double mean = faults.mean_seconds, whole = interval_seconds + faults.checkpoint_seconds;
  return interval_seconds * std::exp(-faults.restart_seconds / mean) / (mean * std::expm1(whole / mean));
}

BestInterval best_interval(const Faults& faults, double step_seconds) {
  constexpr double kApart = 1.02;
  const std::vector<double> gaps = gaps_of(faults);
  const double about = std::max(young_interval(faults), step_seconds);
  BestInterval best;
  for (double interval = std::max(step_seconds, about / 30); interval <= 30 * about; interval *= kApart) {
    const double whole_steps =
        step_seconds > 0 ? step_seconds * std::max(1.0, std::round(interval / step_seconds)) : interval;
    const double share = effective_share(faults, gaps, whole_steps);
    if (share > best.effective_share) best = {.seconds = whole_steps, .effective_share = share};
  }
  return best;
}

double young_interval(const Faults& faults) {
  return std::sqrt(2 * faults.checkpoint_seconds * faults.mean_seconds);
}

double daly_interval(const Faults& faults) {
  const double save = faults.checkpoint_seconds, mean = faults.mean_seconds;
  if (save >= 2 * mean) return mean;
  const double ratio = save / (2 * mean);
  return std::sqrt(2 * save * mean) * (1 + std::sqrt(ratio) / 3 + ratio / 9) - save;
}

double mean_step_seconds(const Stragglers& stragglers, int64_t hosts,
                         const std::function<double(double slowness)>& seconds_at) {
  constexpr double kNearest = 1.01, kFactor = 1.25;  ///< of the points
  std::mt19937_64 source(stragglers.seed);
  const auto count = static_cast<double>(std::max<int64_t>(1, hosts));
  std::vector<double> slowest;
  for (int64_t i = 0; i < std::max<int64_t>(1, stragglers.draws); ++i) {
    // The largest of `count` numbers is below x with probability F(x)^count.
    const double z = normal_quantile(std::pow(1 - uniform(source), 1 / count));
    const bool any_is_slow = uniform(source) >= std::pow(1 - stragglers.slow_share, count);
    slowest.push_back(std::exp(stragglers.sigma * z) * (any_is_slow ? stragglers.slow_factor : 1));
  }
  const auto [least, most] = std::ranges::minmax(slowest);
  std::vector<double> points{least}, seconds{seconds_at(least)};
  for (double next = least * kNearest; points.back() < most; next *= kFactor) {
    points.push_back(std::min(next, most));
    seconds.push_back(seconds_at(points.back()));
  }
  double sum = 0;
  for (const double slowness : slowest) {
    const auto above = std::ranges::lower_bound(points, slowness) - points.begin();
    const auto at = static_cast<size_t>(std::min(above, std::ssize(points) - 1));
    if (at == 0) {
      sum += seconds[0];
      continue;
    }
    const double share = (slowness - points[at - 1]) / (points[at] - points[at - 1]);
    sum += seconds[at - 1] + share * (seconds[at] - seconds[at - 1]);
  }
  return sum / static_cast<double>(slowest.size());
}

}  // namespace fsdp::simulate
