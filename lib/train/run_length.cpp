#include "train/run_length.h"

#include <algorithm>
#include <cmath>

namespace fsdp::train {

int64_t steps_of_epochs(const config::TrainingOptions& options, const data::TrainLoader& loader,
                        const RunPosition& position) {
  double left =
      options.epochs * static_cast<double>(loader.num_samples()) - static_cast<double>(position.samples_seen);
  int64_t step = position.step;
  for (; step < options.batch_warmup_steps && left > 0; ++step) {
    left -= static_cast<double>(loader.samples_per_micro_step() * micro_steps_of(options, step + 1));
  }
  // A step of the warm-up that would see too many samples is not done.
  if (left < 0 && step > position.step) --step;
  left = std::max(left, 0.0);
  const auto whole = static_cast<int64_t>(std::floor(left / static_cast<double>(loader.samples_per_step())));
  return std::max<int64_t>(1, step + whole);
}

}  // namespace fsdp::train
