#include "plan/kernel_choices.h"

#include <algorithm>

namespace fsdp::plan {
namespace {

constexpr int64_t kChunkElements = 16 << 20;

bool has_avx512() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx512f");
#else
  return false;
#endif
}

}  // namespace

int64_t cross_entropy_chunk_rows(int64_t rows, int64_t vocabulary) {
  return std::clamp<int64_t>(kChunkElements / vocabulary, 1, std::max<int64_t>(rows, 1));
}

bool avoids_mkl(const std::string& matmul) {
  return matmul == "onednn" || matmul == "amx" || (matmul == "auto" && has_avx512());
}

bool has_small_products(const std::string& dtype) {
#if defined(__x86_64__)
  const bool has_avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  if (!has_avx512) return false;
  return dtype == "float32" || (dtype == "bfloat16" && __builtin_cpu_supports("avx512bf16"));
#else
  static_cast<void>(dtype);
  return false;
#endif
}

bool has_attention_kernel(const std::string& dtype, int64_t head_dim) {
  return has_small_products(dtype) && head_dim % 2 == 0;
}

}  // namespace fsdp::plan
