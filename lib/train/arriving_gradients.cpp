#include "train/arriving_gradients.h"

#include <utility>

#include "util/error.h"

namespace fsdp::train {

void ArrivingGradients::take(size_t i) {
  norms_[i] = shard::local_grad_norm(engine_, i, options_.norm_type);
  if (options_.updates) update(i);
}

void ArrivingGradients::update(size_t i) {
  // Not before there is one: a step that fails in forward has changed nothing.
  if (!std::exchange(begun_, true)) optimizer_.begin_step(options_.lr);
  optimizer_.update_parameter(i, engine_.units()[i]->storage().shard_gradient());
}

void ArrivingGradients::finish_updates() {
  FSDP_CHECK(options_.updates);
  for (size_t i = 0; i < engine_.units().size(); ++i) {
    if (!norms_[i] && engine_.units()[i]->storage().shard_gradient().defined()) update(i);
  }
  if (!begun_) optimizer_.begin_step(options_.lr);
  optimizer_.end_step();
}

}  // namespace fsdp::train
