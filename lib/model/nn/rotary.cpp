#include "model/nn/rotary.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include <cmath>
#include <numbers>

#include "base/util/error.h"
#include "model/families/rotary_scaling.h"

namespace fsdp::nn {

RotaryTable::RotaryTable(const ModelOptions& options)
    : options_(options), factor_(rope_attention_factor(options)) {
  cos_ = register_buffer("cos", at::empty({0, rotary_width(options)}, at::kFloat));
  sin_ = register_buffer("sin", at::empty({0, rotary_width(options)}, at::kFloat));
  cos_type_ = sin_type_ = at::kFloat;
}

std::pair<at::Tensor, at::Tensor> RotaryTable::angles(int64_t length, const at::Device& device) {
  if (device.is_meta()) return angles_from(0, length, length, device);  // a plan does not change the buffers
  // After a cast the values would keep the rounding of their former type.
  bool valid = cos_.scalar_type() == cos_type_ && sin_.scalar_type() == sin_type_ &&
               cos_.device() == device && sin_.device() == device &&
               rope_length_ == rope_length(options_, length);
  if (!valid || cos_.size(0) < length) compute(length, device);
  return {cos_.narrow(0, 0, length), sin_.narrow(0, 0, length)};
}

std::pair<at::Tensor, at::Tensor> RotaryTable::angles_from(int64_t begin, int64_t length, int64_t whole,
                                                           const at::Device& device) const {
  const auto [cos, sin] = computed(begin, length, whole, device);
  return {cos.to(cos_.scalar_type()), sin.to(sin_.scalar_type())};
}

std::pair<at::Tensor, at::Tensor> RotaryTable::computed(int64_t begin, int64_t length, int64_t whole,
                                                        const at::Device& device) const {
  at::NoGradGuard no_grad;
  auto options = at::TensorOptions().dtype(at::kFloat).device(device);
  const at::Tensor half = at::outer(at::arange(begin, begin + length, options), frequencies(whole, device));
  const at::Tensor angles = at::cat({half, half}, -1);
  if (factor_ == 1) return {angles.cos(), angles.sin()};
  return {angles.cos().mul_(factor_), angles.sin().mul_(factor_)};
}

void RotaryTable::compute(int64_t length, const at::Device& device) {
  at::NoGradGuard no_grad;
  const auto [cos, sin] = computed(0, length, length, device);
  cos_type_ = cos_.scalar_type();
  sin_type_ = sin_.scalar_type();
  rope_length_ = rope_length(options_, length);
  // set_data() keeps the identity of the buffers; tensors returned before view the former memory.
  cos_.set_data(cos.to(cos_type_));
  sin_.set_data(sin.to(sin_type_));
}

at::Tensor RotaryTable::frequencies(int64_t whole, const at::Device& device) const {
  using enum RopeType;
  const RopeType type = options_.rope_type.value();
  const int64_t width = rotary_width(options_), scaled_length = rope_length(options_, whole);
  auto options = at::TensorOptions().dtype(at::kFloat).device(device);
  const at::Tensor exponents = at::arange(0, width, 2, options) / static_cast<double>(width);
  double theta = options_.rope_theta;
  if (type == kDynamic && scaled_length > 0) {
    const double ratio =
        static_cast<double>(scaled_length) / static_cast<double>(options_.max_position_embeddings);
    theta *= std::pow(options_.rope_factor * ratio - (options_.rope_factor - 1),
                      static_cast<double>(width) / static_cast<double>(width - 2));
  }
  const at::Tensor periods = at::pow(theta, exponents);  // over 2 pi
  if (type == kYarn) return yarn_frequencies(periods);
  if (type == kLongrope) {
    const auto& divisors = scaled_length > 0 ? options_.rope_long_factor : options_.rope_short_factor;
    return (at::tensor(divisors, at::kFloat).to(device) * periods).reciprocal();
  }
  const at::Tensor plain = periods.reciprocal();
  if (type == kDefault || type == kDynamic) return plain;
  const at::Tensor slow = plain / options_.rope_factor;
  if (type == kLinear) return slow;
  FSDP_CHECK(type == kLlama3, "rope_type ", options_.rope_type);
  // Turns in the original length: below low_freq_factor slow, above high_freq_factor plain.
  const at::Tensor turns =
      plain * (static_cast<double>(options_.rope_original_length) / (2 * std::numbers::pi));
  const double low = options_.rope_low_freq_factor, high = options_.rope_high_freq_factor;
  const at::Tensor share = ((turns - low) / (high - low)).clamp(0, 1);
  return (1 - share) * slow + share * plain;
}

at::Tensor RotaryTable::yarn_frequencies(const at::Tensor& periods) const {
  const auto [low, high] = yarn_bounds(options_);
  const at::Tensor indices = at::arange(periods.numel(), periods.options());
  const at::Tensor share = 1 - ((indices - low) / (high - low)).clamp(0, 1);  // of the plain frequency
  return (periods * options_.rope_factor).reciprocal() * (1 - share) + periods.reciprocal() * share;
}

at::Tensor rotary_halves(const at::Tensor& x, int64_t width) {
  const at::Tensor pairs = x.narrow(-1, 0, width).unflatten(-1, {width / 2, 2});
  const at::Tensor halves = pairs.transpose(-1, -2).flatten(-2);
  const int64_t rest = x.size(-1) - width;
  return rest == 0 ? halves : at::cat({halves, x.narrow(-1, width, rest)}, -1);
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
