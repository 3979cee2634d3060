#include "shard/engine/gradient_buffer.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include "base/tensor/storage.h"
#include "base/util/error.h"
#include "model/kernels/gradient_sink.h"
#include "shard/engine/layout_views.h"

namespace fsdp::shard {
namespace {

std::string taken_text(const std::string& parameter) {
  return concat(
      "gradient of parameter ", parameter,
      ": expected a read of this rank's part of it; found one of the module's parameter, whose gradient has gone to the "
      "shards; pass fsdp::parameters(engine) to an optimizer of torch::optim, and clip with "
      "fsdp::clip_grad_norm(engine, max_norm)");
}

}  // namespace

class GradientBuffer::Sink final : public kernels::GradientSink {
 public:
  Sink(GradientBuffer& buffer, size_t index) : buffer_(buffer), index_(index) {}

  void operator()(const at::Tensor& parameter) override {
    if (!parameter.grad().defined()) return;  // a kernel wrote to the buffer
    at::NoGradGuard no_grad;
    FSDP_CHECK(buffer_.is_attached(), buffer_.parameters_[index_].name,
               " got a gradient outside of the backward of its unit");
    buffer_.put(index_, parameter.grad());
    at::Tensor(parameter).mutable_grad() = at::Tensor();
  }

  std::optional<SinkPlace> place(at::ScalarType dtype) const override {
    const bool has_place = buffer_.is_attached() && buffer_.layout_.gathers_in_place();
    if (!has_place || dtype != buffer_.dtype_) return std::nullopt;
    return SinkPlace{whole_view(buffer_.layout_, index_, buffer_.next_of(index_)),
                     !buffer_.apart_ && buffer_.held_[index_] > 0};
  }

 private:
  void note_taken() override { ++buffer_.held_[index_]; }

  GradientBuffer& buffer_;
  size_t index_;
};

GradientBuffer::GradientBuffer(const std::vector<NamedParameter>& parameters, const UnitLayout& layout,
                               at::ScalarType dtype, bool apart)
    : parameters_(parameters), layout_(layout), dtype_(dtype), apart_(apart), held_(parameters.size(), 0) {
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const at::Tensor& parameter = parameters_[i].tensor;
    auto sink = std::make_unique<Sink>(*this, i);
    sinks_.push_back(sink.get());
    torch::autograd::impl::set_post_acc_grad_hooks(parameter, std::move(sink));
    taken_.push_back(parameter.requires_grad()
                         ? util::tensor_that_throws(parameter.sizes(),
                                                    parameter.options().requires_grad(false),
                                                    taken_text(parameters_[i].name))
                         : at::Tensor());
  }
}

GradientBuffer::~GradientBuffer() {
  show_taken_gradients(false);
  for (size_t i = 0; i < parameters_.size(); ++i) {
    // Another engine may have taken over.
    auto& attached = torch::autograd::impl::post_acc_grad_hooks(parameters_[i].tensor);
    if (attached.get() == sinks_[i]) attached.reset();
  }
}

void GradientBuffer::show_taken_gradients(bool shown) {
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (!taken_[i].defined()) continue;
    at::Tensor& gradient = parameters_[i].tensor.mutable_grad();
    if (shown) {
      gradient = taken_[i];
    } else if (gradient.is_same(taken_[i])) {
      gradient.reset();
    }
  }
}

at::Tensor GradientBuffer::next_of(size_t parameter) {
  const size_t held = held_[parameter];
  if (!apart_ || held == 0) return flat_;
  if (more_.size() < held) more_.push_back(at::zeros_like(flat_));
  return more_[held - 1];
}

void GradientBuffer::put(size_t parameter, const at::Tensor& gradient) {
  const bool adds = !apart_ && held_[parameter] > 0;
  for (auto& piece : pieces_of(layout_, parameter, gradient.contiguous(), next_of(parameter))) {
    adds ? piece.gathered.add_(piece.whole) : piece.gathered.copy_(piece.whole);
  }
  ++held_[parameter];
}

at::Tensor GradientBuffer::own_buffer(bool stays) {
  const at::TensorOptions options = parameters_.front().tensor.options().dtype(dtype_).requires_grad(false);
  const auto make = [&] { return at::empty({layout_.gathered_numel()}, options); };
  if (!stays) return make();
  for (at::Tensor& kept : kept_) {
    if (!kept.defined()) kept = make();
    if (kept.use_count() == 1 && kept.storage().use_count() == 1) return kept;
  }
  return make();
}

void GradientBuffer::attach(BufferPool* pool, bool stays) {
  FSDP_CHECK(!is_attached());
  show_taken_gradients(false);
  const int64_t numel = layout_.gathered_numel();
  flat_ = pool != nullptr ? pool->acquire_tensor(numel, dtype_, BufferKind::kGradients) : own_buffer(stays);
  held_.assign(parameters_.size(), 0);
  const int64_t padding = numel - layout_.numel();
  if (padding == 0) return;
  (layout_.gathers_in_place() ? flat_.narrow(0, layout_.numel(), padding) : flat_).zero_();
}

at::Tensor GradientBuffer::detach() {
  if (!is_attached()) return {};
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (held_[i] == 0) put(i, at::zeros(layout_.parameters()[i].shape, flat_.options()));
  }
  more_.clear();
  show_taken_gradients(true);
  return std::exchange(flat_, at::Tensor());
}

void GradientBuffer::drop() {
  flat_.reset();
  more_.clear();
  show_taken_gradients(false);
}

std::vector<at::Tensor> GradientBuffer::detach_all() {
  std::vector<at::Tensor> all = more_;
  all.insert(all.begin(), detach());
  return all;
}

int64_t GradientBuffer::nbytes() const {
  return layout_.gathered_numel() * static_cast<int64_t>(c10::elementSize(dtype_));
}

}  // namespace fsdp::shard
