#include "state/gguf_export/quantise.h"

#include <ATen/ops/abs.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/where.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/util/error.h"

namespace fsdp::gguf {

namespace {

float inverse_of(float scale) { return scale == 0.0F ? 0.0F : 1.0F / scale; }

/// A scale with an infinite inverse is 0 in float16, so that the level has no effect; gguf-py writes 0.
float finite_or_zero(float level) { return std::isfinite(level) ? level : 0.0F; }

uint8_t* put_scale(float scale, uint8_t* out) {
  const auto half = static_cast<c10::Half>(scale);
  std::memcpy(out, &half, sizeof(half));
  return out + sizeof(half);
}

/// A product that the compiler must not fuse with the addition of `offset`, which would round once only.
float unfused(float value, float factor, float offset) {
  volatile float product = value * factor;
  return product + offset;
}

}  // namespace

void quantise_q8_0(const float* values, int64_t count, uint8_t* out) {
  FSDP_CHECK(count % kBlockElements == 0);
  for (const float* end = values + count; values != end; values += kBlockElements) {
    float largest = 0;
    for (int64_t i = 0; i < kBlockElements; ++i) largest = std::max(largest, std::fabs(values[i]));
    const float scale = largest / 127.0F, inverse = inverse_of(scale);
    out = put_scale(scale, out);
    for (int64_t i = 0; i < kBlockElements; ++i) {
      *out++ = static_cast<uint8_t>(static_cast<int8_t>(finite_or_zero(std::round(values[i] * inverse))));
    }
  }
}

void quantise_q4_0(const float* values, int64_t count, uint8_t* out) {
  FSDP_CHECK(count % kBlockElements == 0);
  constexpr int64_t kHalf = kBlockElements / 2;
  for (const float* end = values + count; values != end; values += kBlockElements) {
    float largest = 0;  // with its sign; the first of several
    for (int64_t i = 0; i < kBlockElements; ++i) {
      if (std::fabs(values[i]) > std::fabs(largest)) largest = values[i];
    }
    const float scale = largest / -8.0F, inverse = inverse_of(scale);
    out = put_scale(scale, out);
    const auto level = [&](int64_t i) {
      return static_cast<uint8_t>(std::clamp(finite_or_zero(unfused(values[i], inverse, 8.5F)), 0.0F, 15.0F));
    };
    for (int64_t i = 0; i < kHalf; ++i) *out++ = static_cast<uint8_t>(level(i) | level(i + kHalf) << 4);
  }
}

at::Tensor encoded(const at::Tensor& elements, TensorType type, const std::string& where, bool saturate) {
  FSDP_CHECK(elements.dim() == 1 && elements.is_contiguous() && elements.device().is_cpu());
  const TypeTraits& traits = traits_of(type);
  FSDP_CHECK(traits.file_type, util::name_of(type));
  const auto refuse_infinite = [&](const at::Tensor& values, const char* remedy) {
    if (at::isfinite(values).all().item<bool>()) return;
    fail(ErrorKind::kCheckpoint, where, " has values that ", util::name_of(type),
         " cannot hold: they are not finite, or too large; ", remedy);
  };
  if (traits.dtype) {
    at::Tensor fitting = elements;
    if (type == TensorType::kF16 && elements.scalar_type() != at::kHalf) {
      constexpr double kLargest = 65504;
      if (saturate)
        fitting = at::where(at::isfinite(elements), at::clamp(elements, -kLargest, kLargest), elements);
      refuse_infinite(fitting.to(at::kHalf),
                      "choose the type bf16 or f32, or make them 65504 with `saturate`");
    }
    at::Tensor converted = fitting.to(*traits.dtype).contiguous();
    return converted.view(at::kByte);
  }
  const at::Tensor values = elements.to(at::kFloat).contiguous();
  refuse_infinite(values, "choose the type f32, or other weights");
  // The scale of a block is its largest value divided by the number of levels, in float16.
  const double levels = type == TensorType::kQ8_0 ? 127 : 8;
  refuse_infinite(at::abs(values).div(levels).to(at::kHalf), "choose the type bf16 or f32");
  at::Tensor out = at::empty({values.numel() / traits.block_elements * traits.block_bytes},
                             at::TensorOptions().dtype(at::kByte));
  const auto quantise = type == TensorType::kQ8_0 ? quantise_q8_0 : quantise_q4_0;
  quantise(values.const_data_ptr<float>(), values.numel(), out.mutable_data_ptr<uint8_t>());
  return out;
}

}  // namespace fsdp::gguf
