#include "shard/gradient_buffer.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include "shard/layout_views.h"
#include "util/error.h"

namespace fsdp::shard {

/// Runs when autograd has put a gradient into parameter.grad.
class GradientBuffer::AddToBuffer final : public torch::autograd::PostAccumulateGradHook {
 public:
  AddToBuffer(GradientBuffer& buffer, size_t index) : buffer_(buffer), index_(index) {}

  void operator()(const at::Tensor& parameter) override {
    at::NoGradGuard no_grad;
    FSDP_CHECK(buffer_.is_attached(), buffer_.parameters_[index_].name,
               " got a gradient outside of the backward of its unit");
    buffer_.put(index_, parameter.grad());
    at::Tensor(parameter).mutable_grad() = at::Tensor();
  }

 private:
  GradientBuffer& buffer_;
  size_t index_;
};

GradientBuffer::GradientBuffer(const std::vector<NamedParameter>& parameters, const UnitLayout& layout,
                               at::ScalarType dtype)
    : parameters_(parameters),
      layout_(layout),
      dtype_(dtype),
      adds_by_hook_(!parameters.empty() &&
                    (parameters.front().tensor.scalar_type() != dtype || !layout.gathers_in_place())),
      holds_(parameters.size(), false) {
  if (!adds_by_hook_) return;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    torch::autograd::impl::set_post_acc_grad_hooks(parameters_[i].tensor,
                                                   std::make_unique<AddToBuffer>(*this, i));
  }
}

GradientBuffer::~GradientBuffer() {
  if (!adds_by_hook_) return;
  for (const NamedParameter& parameter : parameters_) {
    torch::autograd::impl::set_post_acc_grad_hooks(parameter.tensor, nullptr);
  }
}

at::Tensor GradientBuffer::view_of(size_t parameter) const {
  const ParameterPlace& place = layout_.parameters()[parameter];
  return flat_.narrow(0, place.offset, place.numel).view(place.shape);
}

void GradientBuffer::put(size_t parameter, const at::Tensor& gradient) {
  for (auto& piece : pieces_of(layout_, parameter, gradient.contiguous(), flat_)) {
    if (holds_[parameter]) {
      piece.gathered.add_(piece.whole);
    } else {
      piece.gathered.copy_(piece.whole);
    }
  }
  holds_[parameter] = true;
}

void GradientBuffer::attach(BufferPool* pool) {
  FSDP_CHECK(!is_attached());
  int64_t numel = layout_.gathered_numel();
  at::TensorOptions options = parameters_.front().tensor.options().dtype(dtype_).requires_grad(false);
  flat_ = pool != nullptr ? pool->acquire_tensor(numel, dtype_, BufferKind::kGradients)
                          : at::empty({numel}, options);
  // What hooks put there needs no zeros first, but for what lies between the parameters.
  if (!adds_by_hook_ || layout_.gathered_numel() != layout_.numel()) flat_.zero_();
  holds_.assign(parameters_.size(), false);
  for (size_t i = 0; i < parameters_.size(); ++i) {
    at::Tensor parameter = parameters_[i].tensor;
    if (parameter.requires_grad() && !adds_by_hook_) parameter.mutable_grad() = view_of(i);
  }
}

at::Tensor GradientBuffer::detach() {
  if (!is_attached()) return {};
  for (size_t i = 0; i < parameters_.size(); ++i) {
    at::Tensor parameter = parameters_[i].tensor;
    if (adds_by_hook_) {
      if (!holds_[i]) put(i, at::zeros(layout_.parameters()[i].shape, flat_.options()));
      continue;
    }
    if (!parameter.requires_grad()) continue;
    // Autograd adds in place into a defined grad; should anything have replaced it, the sum must not be lost.
    const at::Tensor& grad = parameter.grad();
    at::Tensor expected = view_of(i);
    if (grad.defined() && grad.data_ptr() != expected.data_ptr()) expected.copy_(grad);
    parameter.mutable_grad() = at::Tensor();
  }
  return std::exchange(flat_, at::Tensor());
}

int64_t GradientBuffer::nbytes() const {
  return layout_.gathered_numel() * static_cast<int64_t>(c10::elementSize(dtype_));
}

}  // namespace fsdp::shard
