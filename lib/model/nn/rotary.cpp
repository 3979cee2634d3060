#include "model/nn/rotary.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include <numbers>

#include "base/util/error.h"

namespace fsdp::nn {

RotaryTable::RotaryTable(const ModelOptions& options) : options_(options) {
  cos_ = register_buffer("cos", at::empty({0, rotary_width(options)}, at::kFloat));
  sin_ = register_buffer("sin", at::empty({0, rotary_width(options)}, at::kFloat));
  cos_type_ = sin_type_ = at::kFloat;
}

std::pair<at::Tensor, at::Tensor> RotaryTable::angles(int64_t length, const at::Device& device) {
  if (device.is_meta()) return angles_from(0, length, device);  // a plan does not change the buffers
  // After a cast the values would keep the rounding of their former type.
  bool valid = cos_.scalar_type() == cos_type_ && sin_.scalar_type() == sin_type_ &&
               cos_.device() == device && sin_.device() == device;
  if (!valid || cos_.size(0) < length) compute(length, device);
  return {cos_.narrow(0, 0, length), sin_.narrow(0, 0, length)};
}

std::pair<at::Tensor, at::Tensor> RotaryTable::angles_from(int64_t begin, int64_t length,
                                                           const at::Device& device) const {
  const at::Tensor angles = computed(begin, length, device);
  return {angles.cos().to(cos_.scalar_type()), angles.sin().to(sin_.scalar_type())};
}

at::Tensor RotaryTable::computed(int64_t begin, int64_t length, const at::Device& device) const {
  at::NoGradGuard no_grad;
  auto options = at::TensorOptions().dtype(at::kFloat).device(device);
  at::Tensor half = at::outer(at::arange(begin, begin + length, options), frequencies(device));
  return at::cat({half, half}, -1);
}

void RotaryTable::compute(int64_t length, const at::Device& device) {
  at::NoGradGuard no_grad;
  const at::Tensor angles = computed(0, length, device);
  cos_type_ = cos_.scalar_type();
  sin_type_ = sin_.scalar_type();
  // set_data() keeps the identity of the buffers; tensors returned before view the former memory.
  cos_.set_data(angles.cos().to(cos_type_));
  sin_.set_data(angles.sin().to(sin_type_));
}

at::Tensor RotaryTable::frequencies(const at::Device& device) const {
  const int64_t width = rotary_width(options_);
  auto options = at::TensorOptions().dtype(at::kFloat).device(device);
  const at::Tensor exponents = at::arange(0, width, 2, options) / static_cast<double>(width);
  const at::Tensor plain = at::pow(options_.rope_theta, exponents).reciprocal();
  if (options_.rope_type == RopeType::kDefault) return plain;
  const at::Tensor slow = plain / options_.rope_factor;
  if (options_.rope_type == RopeType::kLinear) return slow;
  FSDP_CHECK(options_.rope_type == RopeType::kLlama3, "rope_type ", options_.rope_type);
  // Turns in the original length: below low_freq_factor slow, above high_freq_factor plain.
  const at::Tensor turns =
      plain * (static_cast<double>(options_.rope_original_length) / (2 * std::numbers::pi));
  const double low = options_.rope_low_freq_factor, high = options_.rope_high_freq_factor;
  const at::Tensor share = ((turns - low) / (high - low)).clamp(0, 1);
  return (1 - share) * slow + share * plain;
}

at::Tensor apply_rotary(const at::Tensor& given, const at::Tensor& cos, const at::Tensor& sin) {
  const int64_t width = cos.size(-1), rest = given.size(-1) - width;
  const at::Tensor x = rest == 0 ? given : given.narrow(-1, 0, width);
  int64_t half = x.size(-1) / 2;
  at::Tensor rotated = at::cat({x.narrow(-1, half, half).neg(), x.narrow(-1, 0, half)}, -1);
  const at::Tensor turned = (x * cos + rotated * sin).to(x.scalar_type());
  return rest == 0 ? turned : at::cat({turned, given.narrow(-1, width, rest)}, -1);
}

}  // namespace fsdp::nn
