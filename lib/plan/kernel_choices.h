#pragma once

// What lib/kernels chooses on this CPU, for a plan, which does not link it: it says the same as
// kernels/attention.h, block_product.h, fused.h and matmul.h, and tests/train/plan_kernels_test.cpp holds the
// one against the other.

#include <cstdint>
#include <string>

namespace fsdp::plan {

/// kernels::cross_entropy_chunk_rows().
int64_t cross_entropy_chunk_rows(int64_t rows, int64_t vocabulary);

/// Whether kernels::matmul_by_name() gives another than MKL for training.matmul.
bool avoids_mkl(const std::string& matmul);

/// kernels::has_small_products().
bool has_small_products(const std::string& dtype);

/// kernels::can_attend() for heads of that width.
bool has_attention_kernel(const std::string& dtype, int64_t head_dim);

}  // namespace fsdp::plan
