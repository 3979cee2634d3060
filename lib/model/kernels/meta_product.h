#pragma once

// The shape of a product that is recorded, not computed (model/kernels/meta.h).

#include <cstdint>

namespace fsdp::kernels {

/// Kind of a recorded product.
enum class ProductKind {
  kPlain,
  kFloat8,     ///< product of factors in 8 bits
  kAttention,  ///< two products of an attention kernel: m queries, n / 2 keys, heads of width k
};

/// A product [m, k] [k, n].
struct MetaProduct {
  int64_t m = 0, n = 0, k = 0;
  ProductKind kind = ProductKind::kPlain;

  /// Number of operations. A multiplication and an addition are two.
  double flops() const {
    return 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
  }
  bool operator==(const MetaProduct&) const = default;
};

}  // namespace fsdp::kernels
