#pragma once

// The learning rate of each step, as a function of the step alone: nothing to save, nothing to resume.
//
// Steps count from 1 to S (total_steps). With w = warmup_steps, or warmup_ratio of S rounded up, but at most
// S, step s <= w has the share s/w of the rate (Goyal et al., Accurate, large minibatch SGD, 2017). The peak,
// the first step with the full rate, is f = max(w, 1). schedule_shapes() has the shares after the peak. In
// schedules that fall to m = min_lr_ratio, the last step has exactly m times the rate. If the stages are too
// long for the run, the warm-up is cut first, then hold and decay. Steps after S keep the share of step S.

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/util/registry.h"
#include "state/groups/options.h"

namespace fsdp::optim {

/// A step after the warm-up.
struct ScheduleMoment {
  int64_t peak;   ///< f
  int64_t step;   ///< s, above f and at most S
  int64_t total;  ///< S

  double progress() const { return static_cast<double>(step - peak) / static_cast<double>(total - peak); }
};

/// Computes the share of the rate at a step after the warm-up. A pure function.
using ScheduleShape = std::function<double(const ScheduleOptions&, const ScheduleMoment&)>;

/// Registry of schedules, keyed by values of ScheduleOptions::name. With m = min_lr_ratio and
/// p = (s - f) / (S - f), which is 0 at the peak and 1 at the last step, the share is
///
///   constant      1
///   linear        m + (1 - m) * (1 - p)
///   cosine        m + (1 - m) * (1 + cos(pi p)) / 2     Loshchilov, Hutter: SGDR, 2017 (one cycle)
///   polynomial    m + (1 - m) * (1 - p)^power           fairseq's polynomial_decay
///   wsd           1 up to step S - d, then linear to m at step S, d = decay_steps (0: S/10, at least 1;
///                 never more than S - f)                Hu et al.: MiniCPM, 2024; Haegele et al., 2024
///   inverse_sqrt  max(m, sqrt(f / s))                   Vaswani et al.: Attention is all you need, 2017
///   tri_stage     1 up to step f + h, then m^((s - f - h) / d), then m; h = hold_steps, d = decay_steps
///                 (0: up to step S; never longer);      Park et al.: SpecAugment, 2019; fairseq's tri_stage
///                 m > 0
util::Registry<ScheduleShape>& schedule_shapes();
bool is_built_in_schedule(std::string_view name);
/// The keys of schedule_shapes().
std::vector<std::string> schedule_names();

/// Throws Error(kUsage) for an unknown name or a number out of range.
void check_schedule(const ScheduleOptions& schedule);

/// Number of warm-up steps (w above) in a run of total_steps.
int64_t warmup_steps_of(const ScheduleOptions& schedule, int64_t total_steps);

/// Describes, for a warning, which stages of the schedule are cut in a run of total_steps. Empty if none is.
std::string cut_of_schedule(const ScheduleOptions& schedule, int64_t total_steps);

/// The rate of `step` (from 1) in a run of total_steps. Throws as check_schedule() does.
double lr_at(const OptimizerOptions& optimizer, const ScheduleOptions& schedule, int64_t step,
             int64_t total_steps);

}  // namespace fsdp::optim
