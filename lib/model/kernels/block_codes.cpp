#include "model/kernels/block_codes.h"

#include <ATen/Functions.h>
#include <ATen/TensorIndexing.h>
#include <c10/core/DeviceGuard.h>

#include <algorithm>
#include <array>
#include <numeric>

#include "base/tensor/parallel.h"
#include "base/util/error.h"
#include "model/kernels/cpu/loops.h"
#include "model/kernels/cuda/kernels.h"
#include "model/kernels/fused.h"

namespace fsdp::kernels {
namespace {

constexpr int64_t kBlocksAtOnce = 64;  ///< number of blocks that justify another thread

void check(const BlockCodes& codes, const at::Tensor& values) {
  FSDP_CHECK(codes.codes.scalar_type() == at::kByte && codes.scales.scalar_type() == at::kFloat &&
             values.scalar_type() == at::kFloat);
  for (const at::Tensor* x : {&codes.codes, &codes.scales, &values}) {
    FSDP_CHECK(x->is_contiguous() && x->dim() == 1 && x->device() == values.device(), x->sizes());
  }
  FSDP_CHECK(values.numel() == codes.numel() && codes.phase >= 0 && codes.phase < kCodedBlock &&
                 codes.scales.numel() == coded_blocks(codes.phase, codes.numel()),
             values.numel(), " numbers, ", codes.numel(), " codes, ", codes.scales.numel(), " scales, phase ",
             codes.phase);
}

/// Calls visit(block, begin, end) for each block of n numbers.
template <typename Visit>
void for_each_block(int64_t phase, int64_t n, const Visit& visit) {
  util::parallel_for(0, coded_blocks(phase, n), kBlocksAtOnce, [&](int64_t first, int64_t last) {
    for (int64_t block = first; block < last; ++block) {
      const int64_t begin = std::max<int64_t>(block * kCodedBlock - phase, 0);
      visit(block, begin, std::min((block + 1) * kCodedBlock - phase, n));
    }
  });
}

/// The values of all magnitudes as shares of the scale, [128] or [256].
at::Tensor shares(bool is_signed) {
  const int64_t count = is_signed ? 128 : 256;
  std::array<uint8_t, 256> magnitudes{};
  std::iota(magnitudes.begin(), magnitudes.end(), uint8_t{0});
  at::Tensor values = at::empty({count}, at::kFloat);
  cpu::decode_run(is_signed, magnitudes.data(), 1, values.data_ptr<float>(), count);
  return values;
}

/// Returns x, [n], as blocks [blocks, 256], with zeros before and after it.
at::Tensor in_blocks(const at::Tensor& x, int64_t phase) {
  const int64_t blocks = coded_blocks(phase, x.numel());
  return at::constant_pad_nd(x, {phase, blocks * kCodedBlock - phase - x.numel()})
      .view({blocks, kCodedBlock});
}

at::Tensor out_of_blocks(const at::Tensor& x, const BlockCodes& codes) {
  return x.view({-1}).narrow(0, codes.phase, codes.numel());
}

}  // namespace

int64_t phase_of(const util::Rectangle& part, int64_t columns) {
  const bool is_run = part.height() == 1 || part.length() == columns;
  return is_run ? (part.row_begin * columns + part.begin) % kCodedBlock : 0;
}

int64_t coded_blocks(int64_t phase, int64_t n) {
  return n == 0 ? 0 : (phase + n + kCodedBlock - 1) / kCodedBlock;
}

BlockCodes narrow(const BlockCodes& all, int64_t begin, int64_t count) {
  const int64_t from = all.phase + begin, phase = from % kCodedBlock;
  const int64_t first = count == 0 ? 0 : from / kCodedBlock;
  return {all.codes.narrow(0, begin, count), all.scales.narrow(0, first, coded_blocks(phase, count)), phase,
          all.is_signed};
}

void encode(const at::Tensor& values, const BlockCodes& to) {
  check(to, values);
  if (!values.is_cpu()) return encode_composed(values, to);
  const float* from = values.const_data_ptr<float>();
  auto* codes = to.codes.data_ptr<uint8_t>();
  auto* scales = to.scales.data_ptr<float>();
  for_each_block(to.phase, values.numel(), [&](int64_t block, int64_t begin, int64_t end) {
    scales[block] = cpu::encode_run(to.is_signed, from + begin, codes + begin, end - begin);
  });
}

void decode(const BlockCodes& codes, const at::Tensor& to) {
  check(codes, to);
  if (!to.is_cpu()) {
    at::Tensor(to).copy_(decoded_composed(codes));
    return;
  }
  const auto* from = codes.codes.const_data_ptr<uint8_t>();
  const auto* scales = codes.scales.const_data_ptr<float>();
  auto* values = to.data_ptr<float>();
  for_each_block(codes.phase, to.numel(), [&](int64_t block, int64_t begin, int64_t end) {
    cpu::decode_run(codes.is_signed, from + begin, scales[block], values + begin, end - begin);
  });
}

at::Tensor decoded(const BlockCodes& codes) {
  at::Tensor values = at::empty({codes.numel()}, codes.scales.options());
  decode(codes, values);
  return values;
}

void encode_composed(const at::Tensor& values, const BlockCodes& to) {
  check(to, values);
  if (values.numel() == 0) return;
  const at::Tensor blocks = in_blocks(values, to.phase), magnitudes = blocks.abs();
  at::Tensor scales = magnitudes.amax(1);  // propagates NaN
  scales.masked_fill_(scales.lt(0x1p-100), 0);
  at::Tensor(to.scales).copy_(scales);
  const at::Tensor shares_of = shares(to.is_signed).to(values.device());
  at::Tensor middles = shares_of.slice(0, 0, -1).add(shares_of.slice(0, 1)).div_(2);
  if (!to.is_signed) middles[0].fill_(0x1p-126);
  const at::Tensor quotients = magnitudes.div(scales.unsqueeze(1)).nan_to_num_(0, 0, 0);
  at::Tensor codes = at::bucketize(quotients, middles, /*out_int32=*/true, /*right=*/true);
  if (to.is_signed) codes.add_(blocks.lt(0).logical_and_(codes.gt(0)), 128);
  at::Tensor(to.codes).copy_(out_of_blocks(codes, to));
}

at::Tensor decoded_composed(const BlockCodes& codes) {
  if (codes.numel() == 0) return at::empty({0}, codes.scales.options());
  at::Tensor values = shares(codes.is_signed);
  if (codes.is_signed) values = at::cat({values, values.neg()});
  const at::Tensor shares_of = values.to(codes.codes.device()).index_select(0, codes.codes.to(at::kInt));
  const at::Tensor blocks = in_blocks(shares_of, codes.phase);
  return out_of_blocks(blocks.mul(codes.scales.unsqueeze(1)), codes).contiguous();
}

}  // namespace fsdp::kernels
