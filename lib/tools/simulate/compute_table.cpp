#include "tools/simulate/compute_table.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "tools/plan/time.h"

namespace fsdp::simulate {
namespace {

double squared_distance(const kernels::MetaProduct& a, const kernels::MetaProduct& b) {
  const auto of = [](int64_t left, int64_t right) {
    const double ratio = std::log2(static_cast<double>(std::max<int64_t>(left, 1)) /
                                   static_cast<double>(std::max<int64_t>(right, 1)));
    return ratio * ratio;
  };
  return of(a.m, b.m) + of(a.n, b.n) + of(a.k, b.k);
}

/// 0 if none of its kind was measured.
double measured_rate(const std::vector<ProductRate>& rates, const kernels::MetaProduct& product) {
  double logarithms = 0, weights = 0;
  for (const ProductRate& rate : rates) {
    if (rate.shape.kind != product.kind) continue;
    const double distance = squared_distance(rate.shape, product);
    if (distance == 0) return rate.flops_per_second;
    logarithms += std::log(rate.flops_per_second) / distance;
    weights += 1 / distance;
  }
  return weights > 0 ? std::exp(logarithms / weights) : 0;
}

}  // namespace

double KernelSeconds::sum() const { return std::accumulate(of.begin(), of.end(), 0.0); }

void KernelSeconds::add(const KernelSeconds& other, double times) {
  for (size_t i = 0; i < kKernelClasses; ++i) of[i] += times * other.of[i];
}

double ComputeTable::product_seconds(const kernels::MetaProduct& product) const {
  const double rate = measured_rate(products, product);
  if (rate > 0) return product.flops() / rate;
  if (product.kind == kernels::ProductKind::kFloat8) {
    kernels::MetaProduct plain = product;
    plain.kind = kernels::ProductKind::kPlain;
    return product_seconds(plain) / plan::kFloat8Speed;
  }
  const double arithmetic = flops_per_second > 0 ? product.flops() / flops_per_second : 0;
  if (product.kind == kernels::ProductKind::kAttention || memory_bytes_per_second == 0) return arithmetic;
  const auto m = static_cast<double>(product.m), n = static_cast<double>(product.n),
             k = static_cast<double>(product.k);
  return std::max(arithmetic, element_bytes * (m * n + m * k + n * k) / memory_bytes_per_second);
}

}  // namespace fsdp::simulate
