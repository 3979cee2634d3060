#include <ATen/record_function.h>

#include <optional>

#include "base/tensor/autocast.h"
#include "model/kernels/recomputed.h"
#include "shard/engine/autograd_hooks.h"
#include "shard/engine/engine.h"

namespace fsdp::shard {
namespace {

/// Lives during the unit's forward.
struct ForwardScope {
  at::RecordFunction range{at::RecordScope::USER_SCOPE};
  /// Prevents cast copies of gathered parameters, which would outlive the parameters and be stale after an
  /// update.
  util::NoAutocastCache no_cache;
};

class UnitHook final : public nn::CallHook {
 public:
  UnitHook(std::shared_ptr<Engine> engine, size_t unit)
      : engine_(std::move(engine)), unit_(unit), options_(engine_->units()[unit]->options()) {}

  std::shared_ptr<void> before(const nn::CallTensors& inputs) override {
    const bool recording = at::GradMode::is_enabled();
    engine_->forward_begins(unit_, recording);
    if (options_.cast_forward_inputs) {
      for (at::Tensor* input : inputs) {
        if (input->is_floating_point() && !is_autocast(*input))
          *input = input->to(options_.storage.param_dtype);
      }
    }
    if (recording) {
      const nn::CallTensors with_gradient = differentiable(inputs);
      engine_->input_is(unit_, /*differentiable=*/!with_gradient.empty());
      if (!with_gradient.empty()) {
        when_backward_ends(with_gradient, [engine = engine_, unit = unit_] { engine->backward_ends(unit); });
      }
    }
    auto scope = std::make_shared<ForwardScope>();
    if (scope->range.isActive()) scope->range.before("unit/forward " + engine_->units()[unit_]->name());
    return scope;
  }

  void after(const nn::CallTensors& outputs) override {
    const bool recording = at::GradMode::is_enabled();
    const nn::CallTensors with_gradient = recording ? differentiable(outputs) : nn::CallTensors();
    const bool is_differentiable = !with_gradient.empty();
    if (recording) engine_->output_is(unit_, is_differentiable);
    engine_->forward_ends(unit_, is_differentiable || (!recording && engine_->will_be_recomputed()));
    // The first gradient in a pass begins the backward of this call.
    const auto begun_in = std::make_shared<std::optional<int64_t>>();
    for (at::Tensor* output : with_gradient) {
      kernels::keep_result(*output);  // the unit may not be gathered when another unit needs it
      when_backward_begins(*output, [engine = engine_, unit = unit_, begun_in] {
        if (*begun_in == engine->backward_passes()) return;
        *begun_in = engine->backward_passes();
        engine->backward_begins(unit);
      });
    }
  }

 private:
  /// Whether a region of autocast chooses the types of computations with the input.
  bool is_autocast(const at::Tensor& input) const {
    return options_.storage.param_dtype == at::kFloat && util::autocast_type(input.device()).has_value();
  }

  std::shared_ptr<Engine> engine_;
  size_t unit_;
  const UnitOptions options_;
};

}  // namespace

std::shared_ptr<nn::CallHook> make_unit_hook(std::shared_ptr<Engine> engine, size_t unit) {
  return std::make_shared<UnitHook>(std::move(engine), unit);
}

}  // namespace fsdp::shard
