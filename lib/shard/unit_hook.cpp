#include "shard/unit_hook.h"

#include "shard/autograd_hooks.h"
#include "shard/profile_range.h"

namespace fsdp::shard {
namespace {

class UnitHook final : public nn::Surround {
 public:
  UnitHook(std::shared_ptr<Engine> engine, size_t unit)
      : engine_(std::move(engine)),
        unit_(unit),
        input_dtype_(engine_->units()[unit]->options().storage.param_dtype) {}

  at::Tensor around(nn::Stage&, const at::Tensor& input, const Next& next) override {
    const bool recording = at::GradMode::is_enabled();
    engine_->forward_begins(unit_, recording);
    at::Tensor inner = input;
    if (engine_->options().mixed_precision.cast_forward_inputs && input.is_floating_point()) {
      inner = inner.to(input_dtype_);
    }
    if (recording) engine_->input_is(unit_, /*differentiable=*/inner.requires_grad());
    if (recording && inner.requires_grad()) {
      inner = when_backward_ends(inner, [engine = engine_, unit = unit_] { engine->backward_ends(unit); });
    }
    at::Tensor output;
    {
      const ProfileRange range("unit/forward", engine_->units()[unit_]->name());
      output = next(inner);
    }
    const bool is_differentiable = recording && output.requires_grad();
    engine_->forward_ends(unit_, is_differentiable || (!recording && engine_->will_be_recomputed()));
    if (is_differentiable) {
      when_backward_begins(output, [engine = engine_, unit = unit_] { engine->backward_begins(unit); });
    }
    return output;
  }

 private:
  std::shared_ptr<Engine> engine_;
  size_t unit_;
  at::ScalarType input_dtype_;
};

}  // namespace

std::shared_ptr<nn::Surround> make_unit_hook(std::shared_ptr<Engine> engine, size_t unit) {
  return std::make_shared<UnitHook>(std::move(engine), unit);
}

}  // namespace fsdp::shard
