#pragma once

// Checks of options and the loop over elements, shared by optimizers that update element by element.

#include <cmath>
#include <utility>

#include "base/tensor/parallel.h"
#include "state/optim/optimizer.h"

namespace fsdp::optim {

/// Throws Error(kUsage) unless there are two betas of at least 0 and below 1.
inline std::pair<double, double> checked_betas(const OptimizerOptions& options) {
  require(options.betas.size() == 2, "optimizer.betas must have two numbers, but has ", options.betas.size(),
          "; write it as [0.9, 0.95]");
  for (double beta : options.betas) {
    require(beta >= 0 && beta < 1, "optimizer.betas must be at least 0 and below 1, but one of them is ",
            beta, "; correct the config");
  }
  return {options.betas[0], options.betas[1]};
}

/// Throws Error(kUsage) unless eps is a number of at least 0.
inline double checked_eps(const OptimizerOptions& options) {
  const double eps = eps_of(options);
  require(eps >= 0 && std::isfinite(eps), "optimizer.eps = ", eps,
          " must be a number of at least 0; correct the config");
  return eps;
}

/// Calls loop(n, value, gradient, first state, second state) for runs of n contiguous elements on the CPU, in
/// several threads, until every element of the update has been visited. A state that the update lacks is
/// null.
template <typename Update, typename Loop>
void loop_over(const Update& update, const Loop& loop) {
  for (size_t k = 0; k < update.values.size(); ++k) {
    float* value = update.values[k].template data_ptr<float>();
    const float* gradient = update.gradients[k].template const_data_ptr<float>();
    const auto state = [&](size_t s) {
      return s < update.states.size() ? update.states[s][k].template data_ptr<float>() : nullptr;
    };
    float *first = state(0), *second = state(1);
    util::parallel_for(0, update.values[k].numel(), kGrain, [&](int64_t begin, int64_t end) {
      loop(end - begin, value + begin, gradient + begin, first == nullptr ? first : first + begin,
           second == nullptr ? second : second + begin);
    });
  }
}

}  // namespace fsdp::optim
