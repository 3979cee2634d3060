#pragma once

// What faults and slow hosts make of a run: the share of its time that goes into steps that last, at an interval of
// checkpoints, and the interval that is best. Drawn by seed; formulas of the same for comparison.

#include <cstdint>
#include <functional>

namespace fsdp::simulate {

/// Faults come independently of each other, at a constant rate, and each ends the whole group of ranks.
struct Faults {
  double mean_seconds = 0;        ///< between two of the whole run; above 0
  double checkpoint_seconds = 0;  ///< for which training stands still at a save
  double restart_seconds = 0;  ///< from a fault to the first new step; a fault in that time begins it again
  int64_t draws = 20'000;
  uint64_t seed = 1;
};

/// The mean time between faults of so many hosts, each of which has one in `mtbf_seconds`.
double mean_seconds_between_faults(double mtbf_seconds, int64_t hosts);

/// Of the run's time, in steps that no fault undid, with a save after each `interval_seconds` of steps; drawn.
double effective_share(const Faults& faults, double interval_seconds);
/// The expectation of the same (Daly: A higher order estimate of the optimum checkpoint interval for restart dumps,
/// 2006).
double expected_effective_share(const Faults& faults, double interval_seconds);

struct BestInterval {
  double seconds = 0;  ///< of steps between two saves
  double effective_share = 0;
};
/// The best of intervals that are 2 % apart, with the same draws for all; of steps of that length.
BestInterval best_interval(const Faults& faults, double step_seconds);

/// Young: A first order approximation to the optimum checkpoint interval, 1974.
double young_interval(const Faults& faults);
/// Daly, 2006, of higher order.
double daly_interval(const Faults& faults);

/// How slow hosts are in a step, independently of each other.
struct Stragglers {
  double sigma = 0;          ///< a host takes exp(sigma z) times as long, z from the normal distribution
  double slow_share = 0;     ///< a host is slow in a step with this probability
  double slow_factor = 1.5;  ///< and takes so many times as long
  int64_t draws = 1000;
  uint64_t seed = 1;

  bool any() const { return sigma > 0 || (slow_share > 0 && slow_factor > 1); }
};

/// The mean of `seconds_at(slowness of the slowest of so many hosts)`, which is calculated at few points and taken as
/// linear between these.
double mean_step_seconds(const Stragglers& stragglers, int64_t hosts,
                         const std::function<double(double slowness)>& seconds_at);

}  // namespace fsdp::simulate
