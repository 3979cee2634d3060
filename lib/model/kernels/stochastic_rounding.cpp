#include "model/kernels/stochastic_rounding.h"

#include <ATen/Functions.h>

#include <algorithm>

#include "base/tensor/parallel.h"
#include "base/util/error.h"
#include "model/kernels/cpu/loops.h"

namespace fsdp::kernels {
namespace {

constexpr int64_t kRoundedAtOnce = 32768;        ///< number of elements that justify another thread
constexpr int64_t kLowWords = int64_t{1} << 32;  ///< number of indices with the same high word

/// Returns cpu::RoundedRun::keys.
struct HashKeys {
  explicit HashKeys(uint64_t key)
      : first(static_cast<uint32_t>(key)), second(static_cast<uint32_t>(key >> 32)) {}
  uint32_t first, second;
};

void check(const at::Tensor& values, const at::Tensor& to, const RoundedElements& elements) {
  FSDP_CHECK(values.scalar_type() == at::kFloat && values.is_contiguous() && to.is_contiguous() &&
                 values.numel() == to.numel() && values.device() == to.device(),
             values.sizes(), " to ", to.sizes());
  FSDP_CHECK(to.scalar_type() == at::kBFloat16 || to.scalar_type() == at::kHalf, to.scalar_type());
  FSDP_CHECK(elements.first >= 0 && elements.first + values.numel() <= elements.part.numel(), elements.first,
             " + ", values.numel(), " of ", elements.part.numel());
}

/// Calls visit(offset, index, count) for runs of elements [begin, end) of the piece whose indices in the
/// tensor ascend by one and have the same high word.
template <typename Visit>
void for_each_run(const RoundedElements& elements, int64_t begin, int64_t end, const Visit& visit) {
  const int64_t length = elements.part.length();
  while (begin < end) {
    const int64_t row = elements.part.row_begin + (elements.first + begin) / length,
                  column = (elements.first + begin) % length;
    const int64_t index = row * elements.columns + elements.part.begin + column;
    const int64_t count = std::min({end - begin, length - column, kLowWords - index % kLowWords});
    visit(begin, index, count);
    begin += count;
  }
}

/// Returns x >> bits for unsigned 32-bit words.
at::Tensor shifted(const at::Tensor& x, int64_t bits) {
  return x.bitwise_right_shift(bits).bitwise_and_((int64_t{1} << (32 - bits)) - 1);
}

at::Scalar word(uint32_t bits) { return static_cast<int32_t>(bits); }

/// Returns the bits of random_bits() in rounded_bits.inc, [n] int32.
at::Tensor random_words(const RoundedElements& elements, int64_t n, const at::Device& device) {
  const int64_t length = elements.part.length();
  at::Tensor index =
      at::arange(elements.first, elements.first + n, at::TensorOptions().dtype(at::kLong).device(device));
  const int64_t of_first = elements.part.row_begin * elements.columns + elements.part.begin;
  if (elements.part.height() > 1) index.add_(index.div(length, "floor"), elements.columns - length);
  index.add_(of_first);
  const HashKeys keys(elements.key);
  const at::Tensor high = index.bitwise_right_shift(32).to(at::kInt).mul_(word(kOfHighWord));
  at::Tensor x = index.to(at::kInt).add_(word(keys.first));
  x.bitwise_xor_(shifted(x, 16)).mul_(word(kFirstHashFactor));
  x.bitwise_xor_(shifted(x, 15)).bitwise_xor_(high).bitwise_xor_(word(keys.second));
  x.mul_(word(kSecondHashFactor));
  return x.bitwise_xor_(shifted(x, 16));
}

/// Returns the bits of a bf16 in the lower half, [n] int32.
at::Tensor bfloat16_words(const at::Tensor& bits, const at::Tensor& random) {
  constexpr int64_t kInfinity = 0x7f800000;
  const at::Tensor magnitude = bits.bitwise_and(0x7fffffff);
  at::Tensor rounded = shifted(random.bitwise_and(0xffff).add_(bits), 16);
  rounded.sub_(rounded.bitwise_and(0x7fff).eq(kInfinity >> 16).to(at::kInt));
  const at::Tensor special = shifted(bits, 16).bitwise_or_(magnitude.gt(kInfinity).to(at::kInt).mul_(0x40));
  return at::where(magnitude.ge(kInfinity), special, rounded);
}

/// Returns the bits of an fp16 in the lower half, [n] int32.
at::Tensor half_words(const at::Tensor& bits, const at::Tensor& random) {
  const at::Tensor magnitude = bits.bitwise_and(0x7fffffff);
  const at::Tensor normal = shifted(random.bitwise_and(0x1fff).add_(magnitude), 13).sub_(0x1c000);
  const at::Tensor is_subnormal = magnitude.lt(0x38800000);
  const at::Tensor multiple =
      magnitude.view(at::kFloat).mul(16777216.0).masked_fill_(is_subnormal.logical_not(), 0);
  const at::Tensor whole = multiple.floor(), rest = multiple.sub(whole).mul_(16777216.0).to(at::kInt);
  const at::Tensor subnormal = whole.to(at::kInt).add_(shifted(random, 8).lt(rest).to(at::kInt));
  at::Tensor result = at::where(is_subnormal, subnormal, normal.clamp_max(0x7bff));
  result.masked_fill_(magnitude.ge(0x47800000), 0x7c00);
  result.masked_fill_(magnitude.gt(0x7f800000), 0x7e00);
  return result.bitwise_or_(shifted(bits, 16).bitwise_and_(0x8000));
}

}  // namespace

void round_stochastically(const at::Tensor& values, const at::Tensor& to, const RoundedElements& elements) {
  if (!values.is_cpu()) return round_stochastically_composed(values, to, elements);
  check(values, to, elements);
  const bool is_half = to.scalar_type() == at::kHalf;
  const float* from = values.const_data_ptr<float>();
  auto* bits = static_cast<uint16_t*>(to.data_ptr());
  const HashKeys keys(elements.key);
  util::parallel_for(0, values.numel(), kRoundedAtOnce, [&](int64_t begin, int64_t end) {
    for_each_run(elements, begin, end, [&](int64_t offset, int64_t index, int64_t count) {
      const auto high = static_cast<uint32_t>(index / kLowWords);
      cpu::round_stochastically(is_half, {.values = from + offset,
                                          .to = bits + offset,
                                          .n = count,
                                          .index = static_cast<uint32_t>(index % kLowWords),
                                          .keys = {keys.first, keys.second ^ (high * kOfHighWord)}});
    });
  });
}

void round_stochastically_composed(const at::Tensor& values, const at::Tensor& to,
                                   const RoundedElements& elements) {
  check(values, to, elements);
  if (values.numel() == 0) return;
  const at::Tensor bits = values.view(at::kInt),
                   random = random_words(elements, values.numel(), values.device());
  const at::Tensor words =
      to.scalar_type() == at::kHalf ? half_words(bits, random) : bfloat16_words(bits, random);
  to.view(at::kShort).copy_(words);
}

}  // namespace fsdp::kernels
