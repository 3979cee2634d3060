#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>

#include <vector>

#include "base/util/error.h"
#include "comm/codes/block_bits.h"
#include "comm/codes/link_codes.h"

namespace fsdp::comm {
namespace {

constexpr int64_t kMask = 0xffffffff;

/// mixed() of int64 numbers from 0 to 2^32 - 1.
at::Tensor mixed_composed(at::Tensor x) {
  x = x.bitwise_xor(x.bitwise_right_shift(16)).mul(int64_t{0x7feb352d}).bitwise_and(kMask);
  x = x.bitwise_xor(x.bitwise_right_shift(15)).mul(int64_t{0x846ca68b}).bitwise_and(kMask);
  return x.bitwise_xor(x.bitwise_right_shift(16));
}

at::Tensor numbers(int64_t count, const at::Tensor& like) {
  return at::arange(count, like.options().dtype(at::kLong));
}

/// Random numbers from 0 to 1 for `values` [blocks, 256].
at::Tensor random_of(const at::Tensor& values, uint32_t seed, int64_t first_block) {
  const at::Tensor bits = values.view(at::kInt).to(at::kLong).bitwise_and(kMask);
  const at::Tensor factors = mixed_composed(numbers(kCodeBlock, values).add(1)).bitwise_or(1);
  const at::Tensor hash = bits.mul(factors).bitwise_and(kMask).sum(1).bitwise_and(kMask);
  const at::Tensor blocks = numbers(values.size(0), values).add(first_block);
  const at::Tensor places = blocks.mul(int64_t{kGolden}).add(int64_t{seed});
  const at::Tensor key = mixed_composed(hash.bitwise_xor(mixed_composed(places.bitwise_and(kMask))));
  const at::Tensor steps = numbers(kCodeBlock, values).mul(int64_t{kGolden});
  const at::Tensor random = mixed_composed(key.unsqueeze(1).add(steps).bitwise_and(kMask));
  return random.bitwise_right_shift(8).to(at::kFloat).mul(kUnit);
}

int64_t blocks_of(int64_t numel) { return (numel + kCodeBlock - 1) / kCodeBlock; }

}  // namespace

void encode_composed(LinkType type, const at::Tensor& given, const at::Tensor& bytes,
                     const CodeRounding& rounding) {
  const at::NoGradGuard no_grad;
  const int64_t numel = given.numel(), blocks = blocks_of(numel);
  if (numel == 0) return;
  at::Tensor flat = given.reshape({-1}).to(at::kFloat);
  if (rounding.error.defined()) flat = flat.add(rounding.error);
  const at::Tensor values =
      at::constant_pad_nd(flat, {0, blocks * kCodeBlock - numel}).view({blocks, kCodeBlock});
  const double levels = levels_of(type);
  const at::Tensor magnitude = values.view(at::kInt).bitwise_and(0x7fffffff).amax(1, /*keepdim=*/true);
  at::Tensor scale = magnitude.view(at::kFloat).div(levels).view(at::kInt);
  scale = scale.add(0xffff).bitwise_and(static_cast<int64_t>(static_cast<int32_t>(0xffff0000U)));
  const at::Tensor is_finite = magnitude.lt(int64_t{kInfinityBits});
  const at::Tensor is_coded = is_finite.logical_and(magnitude.ge(int64_t{kLeastBits}));
  const at::Tensor zero = at::zeros_like(scale);
  scale = at::where(is_coded, scale, at::where(is_finite, zero, at::full_like(scale, int64_t{kNanBits})))
              .view(at::kFloat);
  at::Tensor codes = values.div(at::where(is_coded, scale, at::full_like(scale, 1)));
  codes = rounding.seed ? codes.add(random_of(values, *rounding.seed, rounding.first_block)).floor()
                        : codes.round();
  codes = at::where(is_coded, codes.clamp(-levels, levels), at::zeros_like(codes));
  // By bits: a conversion to bfloat16 may give a NaN other bits.
  const at::Tensor scale_bits = scale.view(at::kInt).bitwise_right_shift(16).to(at::kShort);
  bytes.narrow(0, 0, 2 * blocks).view(at::kShort).copy_(scale_bits.view({-1}));
  if (rounding.error.defined()) {
    const at::Tensor lacks = at::where(is_finite, values.sub(codes.mul(scale)), at::zeros_like(values));
    rounding.error.copy_(lacks.view({-1}).narrow(0, 0, numel));
  }
  const int64_t coded = type == LinkType::kInt8 ? numel : (numel + 1) / 2;
  const at::Tensor place = bytes.narrow(0, 2 * blocks, coded);
  const int64_t padding = bytes.numel() - 2 * blocks - coded;
  if (padding > 0) bytes.narrow(0, bytes.numel() - padding, padding).zero_();
  if (type == LinkType::kInt8) {
    place.copy_(codes.to(at::kChar).view({-1}).narrow(0, 0, numel).view(at::kByte));
    return;
  }
  const at::Tensor pairs = codes.add(8).to(at::kByte).view({-1, 2});
  const at::Tensor packed = pairs.select(1, 0).bitwise_or(pairs.select(1, 1).bitwise_left_shift(4));
  place.copy_(packed.narrow(0, 0, coded));
}

at::Tensor decoded_composed(LinkType type, const at::Tensor& bytes, int64_t numel) {
  const at::NoGradGuard no_grad;
  const int64_t blocks = blocks_of(numel);
  if (numel == 0) return bytes.narrow(0, 0, 0).to(at::kFloat);
  const int64_t coded = type == LinkType::kInt8 ? numel : (numel + 1) / 2;
  at::Tensor codes = bytes.narrow(0, 2 * blocks, coded);
  if (type == LinkType::kInt8) {
    codes = codes.view(at::kChar).to(at::kFloat);
  } else {
    codes = at::stack({codes.bitwise_and(15), codes.bitwise_right_shift(4)}, 1)
                .view({-1})
                .narrow(0, 0, numel)
                .to(at::kFloat)
                .sub(8);
  }
  const at::Tensor scale = bytes.narrow(0, 0, 2 * blocks).view(at::kBFloat16).to(at::kFloat).unsqueeze(1);
  const at::Tensor padded = at::constant_pad_nd(codes, {0, blocks * kCodeBlock - numel});
  return padded.view({blocks, kCodeBlock}).mul(scale).view({-1}).narrow(0, 0, numel);
}

}  // namespace fsdp::comm
