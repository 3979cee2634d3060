#pragma once

// Effects of faults and slow hosts on a run: the share of its time that goes into steps that last, at an
// interval of checkpoints; the best interval; and the mean step of hosts that are slow at random. Both are
// expectations over the distributions, without drawing.

#include <cstdint>
#include <functional>

namespace fsdp::simulate {

/// Faults come independently of each other, at a constant rate, and each ends the whole group of ranks.
struct Faults {
  double mean_seconds = 0;        ///< mean time between two faults of the whole run; above 0
  double checkpoint_seconds = 0;  ///< time for which training stands still at a save; above 0
  double restart_seconds = 0;  ///< time from a fault to the first new step; a fault within it starts it again
};

/// Share of the run's time in steps that no fault undid, with a save after each `interval_seconds` of steps
/// (Daly: A higher order estimate of the optimum checkpoint interval for restart dumps, 2006).
double effective_share(const Faults& faults, double interval_seconds);

/// The interval with the largest share, a multiple of the step.
double best_interval(const Faults& faults, double step_seconds);

/// Slowness of hosts in a step, independently of each other.
struct Stragglers {
  double sigma = 0;          ///< a host takes exp(sigma z) times as long, z from the normal distribution
  double slow_share = 0;     ///< probability that a host is slow in a step
  double slow_factor = 1.5;  ///< factor on the time of a slow host

  bool any() const { return sigma > 0 || (slow_share > 0 && slow_factor > 1); }
};

/// The mean of `seconds_at(slowness of the slowest host)` over so many hosts.
double mean_step_seconds(const Stragglers& stragglers, int64_t hosts,
                         const std::function<double(double slowness)>& seconds_at);

}  // namespace fsdp::simulate
