#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace fsdp::optim {

struct OptimizerOptions {
  std::string name = "adamw";  ///< one of optimizer_names()
  double lr = 3e-4;
  std::vector<double> betas = {0.9, 0.95};  ///< adam, adamw, lion
  double eps = 1e-8;                        ///< adam, adamw
  double momentum = 0.0;                    ///< sgd
  double dampening = 0.0;                   ///< sgd
  bool nesterov = false;                    ///< sgd
  double weight_decay = 0.1;
  /// Patterns (with * and ?) of parameter names without weight decay; empty: every parameter decays.
  std::vector<std::string> no_decay;
  bool fused = true;  ///< kernels of one pass over memory; off: the same arithmetic from tensor operations
};

struct ScheduleOptions {
  std::string name = "constant";  ///< constant, cosine, linear, wsd, inverse_sqrt, polynomial
  int64_t warmup_steps = 0;       ///< linear from 0; step 1 has 1/warmup_steps of the rate
  int64_t decay_steps = 0;        ///< wsd: length of the final decay; 0: a tenth of the run
  double min_lr_ratio = 0.0;      ///< the rate never falls under this share of lr after warm-up
  double power = 1.0;             ///< polynomial
};

/// Dynamic loss scaling (optim/grad_scaler.h).
struct GradScalerOptions {
  std::string enabled = "auto";  ///< "true", "false" or "auto": when gradients are float16 anywhere
  double init_scale = 65536;
  double growth_factor = 2;
  double backoff_factor = 0.5;
  int64_t growth_interval = 2000;  ///< good steps in a row after which the scale grows
  double min_scale = 1;            ///< an overflow at this scale means that the training has diverged
};

}  // namespace fsdp::optim
