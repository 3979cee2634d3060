#include "shard/engine/reduce/host_reduction.h"

#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>

#include "base/util/error.h"
#include "shard/engine/pending_work.h"

namespace fsdp::shard {

void HostReduction::start(Reach reach) {
  FSDP_CHECK(!leaving_.defined(), "unit ", unit_.name(), " is being reduced already");
  RECORD_USER_SCOPE("unit/reduce " + unit_.name());
  const at::NoGradGuard no_grad;
  const auto [sums, last] = on_device_->issue(reach);
  const std::shared_ptr<comm::Work> reduced = last.enqueue([sums = sums] { sums->finish(); });
  leaving_ = sums->output;
  const auto arrived = std::make_shared<at::Tensor>();
  left_ = unit_.offload()->receive([this, sums = sums, reduced, arrived] {
    reduced->wait();
    *arrived = unit_.offload()->copy_to_host(sums->output);
    sums->output.reset();
  });
  on_host_ = unit_.offload()->then([this, arrived, left = left_] {
    left.synchronize();
    unit_.storage().gradient().add(*arrived);
  });
}

void HostReduction::finish_sending() {
  on_device_->finish_sending();
  if (!unit_.has_parts()) finish_moving();  // the gradient is the buffer of the whole unit
}

void HostReduction::finish_moving() {
  on_device_->finish_moving();
  if (on_device_->is_going_across()) return;
  // The caller's stream must wait before the memory is freed.
  if (const at::Tensor leaving = std::move(leaving_); leaving.defined()) left_.wait();
}

void HostReduction::finish() {
  finish_sending();
  on_device_->finish();
  finish_moving();
  finish_on_host();
}

void HostReduction::use_gradient(std::function<void()> use) {
  on_host_ = unit_.offload()->then(std::move(use));
}

void HostReduction::reset() {
  on_device_->reset();
  ignore_errors_of([this] { finish_moving(); });
  ignore_errors_of([this] { finish_on_host(); });
}

}  // namespace fsdp::shard
