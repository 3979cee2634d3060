#include "model/kernels/exact_squares.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <mutex>

#include "base/tensor/parallel.h"
#include "base/util/error.h"
#include "model/kernels/cpu/loops.h"

namespace fsdp::kernels {

ExactSquares::ExactSquares() : counts_(at::zeros({cpu::SquareCounts::kNumbers}, at::kLong)) {}

void ExactSquares::add(const at::Tensor& x) {
  FSDP_CHECK(x.is_cpu() && x.is_contiguous() && x.scalar_type() == at::kFloat, x.scalar_type());
  constexpr int64_t kPart = 1 << 16;
  const int64_t n = x.numel(), parts = (n + kPart - 1) / kPart;
  const auto* values = x.const_data_ptr<float>();
  auto* counts = counts_.data_ptr<int64_t>();
  std::mutex mutex;
  util::parallel_for(0, parts, 4, [&](int64_t begin, int64_t end) {
    std::array<int64_t, cpu::SquareCounts::kNumbers> own{};
    cpu::count_squares(values + begin * kPart, std::min(n, end * kPart) - begin * kPart, own.data());
    const std::lock_guard lock(mutex);
    for (size_t i = 0; i < own.size(); ++i) counts[i] += own[i];
  });
}

double ExactSquares::sum() const {
  using Counts = cpu::SquareCounts;
  const auto* counts = counts_.const_data_ptr<int64_t>();
  if (counts[Counts::kNotFinite] != 0) return std::numeric_limits<double>::infinity();
  int largest = Counts::kUnits - 1;
  while (largest > 0 && counts[Counts::kSeen + largest] == 0) --largest;
  double sum = 0;
  for (int unit = largest; unit >= std::max(0, largest - Counts::kKept + 1); --unit) {
    sum += std::ldexp(static_cast<double>(counts[unit]), Counts::exponent(unit));
  }
  return sum;
}

}  // namespace fsdp::kernels
