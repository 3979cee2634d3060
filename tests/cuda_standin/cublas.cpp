// cuBLAS: products are checked (device, shapes, memory) and counted, and computed where numbers are.
// Functions that training does not call are generated (missing_symbols.py) and are violations.

#include <cublas_api.h>

#include <algorithm>
#include <array>
#include <functional>
#include <utility>

#include "cublas_handle.h"
#include "products.h"
#include "standin.h"

namespace standin {
namespace {

CublasHandle& own(cublasHandle_t handle) { return *reinterpret_cast<CublasHandle*>(handle); }

/// The stream of a product that is about to be launched.
cudaStream_t stream_of(cublasHandle_t handle) {
  int device = 0;
  cudaGetDevice(&device);
  if (device != own(handle).device)
    standin_violation("a cuBLAS handle of another device than the current one");
  return own(handle).stream;
}

/// A matrix of Fortran's order, or a batch of them.
struct Matrix {
  const void* data;
  cudaDataType type;
  int rows, columns, leading;
  long long stride = 0;
  int batch = 1;

  size_t bytes() const {
    if (rows == 0 || columns == 0 || batch == 0) return 0;
    const long long one = static_cast<long long>(columns - 1) * leading + rows;
    return static_cast<size_t>((batch - 1) * stride + one) * bytes_of(type);
  }
  /// For the fast kernels of cuBLAS: where a column begins at no multiple of 16 bytes.
  bool is_unaligned() const { return columns > 1 && static_cast<size_t>(leading) * bytes_of(type) % 16 != 0; }
  /// Null if there is nothing, or a violation.
  void* view(const char* who) const { return bytes() > 0 ? standin_view(data, bytes(), who) : nullptr; }
  Operand operand(const char* who, cublasOperation_t operation) const {
    return {view(who), type, leading, stride, operation != CUBLAS_OP_N};
  }
};

struct Factors {
  const void *alpha, *beta;
  bool are_double = false;

  static double number(const void* factor, bool is_double) {
    return is_double ? *static_cast<const double*>(factor) : double{*static_cast<const float*>(factor)};
  }
};

/// As BLAS has it: op(a) is m x k, op(b) is k x n.
struct Sizes {
  cublasOperation_t a, b;
  int m, n, k;

  int rows_of_a() const { return a == CUBLAS_OP_N ? m : k; }
  int columns_of_a() const { return a == CUBLAS_OP_N ? k : m; }
  int rows_of_b() const { return b == CUBLAS_OP_N ? k : n; }
  int columns_of_b() const { return b == CUBLAS_OP_N ? n : k; }
};

cublasStatus_t product(const char* name, cublasHandle_t handle, const Sizes& sizes, const Factors& factors,
                       const Matrix& a, const Matrix& b, const Matrix& c) {
  const std::array<const Matrix*, 3> all = {&a, &b, &c};
  const std::array<int, 3> all_sizes = {sizes.m, sizes.n, sizes.k};
  for (const Matrix* matrix : all) {
    if (matrix->leading < matrix->rows || matrix->leading < 1) {
      standin_violation("cuBLAS: a leading dimension is smaller than the rows");
    }
    matrix->view(name);
  }
  std::function<void()> work;
  if (standin_computes() != 0 && own(handle).pointer_mode == CUBLAS_POINTER_MODE_HOST) {
    const Operand result = c.operand(name, CUBLAS_OP_N);
    work = computed({.m = sizes.m,
                     .n = sizes.n,
                     .k = sizes.k,
                     .batch = c.batch,
                     .alpha = Factors::number(factors.alpha, factors.are_double),
                     .beta = Factors::number(factors.beta, factors.are_double),
                     .a = a.operand(name, sizes.a),
                     .b = b.operand(name, sizes.b),
                     .c = result,
                     .d = result});
  }
  const Range ranges[] = {{a.data, a.bytes()}, {b.data, b.bytes()}, {c.data, c.bytes(), true}};
  standin_count("products");
  standin_launched(launch_text(sizes.m, sizes.n, sizes.k, c.batch, c.type).c_str());
  if (std::any_of(all.begin(), all.end(), [](const Matrix* matrix) { return matrix->is_unaligned(); })) {
    standin_count("products with unaligned rows");
  }
  const size_t bytes = bytes_of(a.type);
  if (std::any_of(all_sizes.begin(), all_sizes.end(), [&](int size) { return size * bytes % 16 != 0; })) {
    standin_count("multiplications in products of uneven sizes",
                  int64_t{sizes.m} * sizes.n * sizes.k * c.batch);
  }
  return standin_submit(name, stream_of(handle), ranges, 3, std::move(work)) == 0
             ? CUBLAS_STATUS_SUCCESS
             : CUBLAS_STATUS_EXECUTION_FAILED;
}

}  // namespace
}  // namespace standin

using namespace standin;

extern "C" {

cublasStatus_t cublasCreate_v2(cublasHandle_t* handle) {
  auto* made = new CublasHandle;
  cudaGetDevice(&made->device);
  *handle = reinterpret_cast<cublasHandle_t>(made);
  standin_count("cublasCreate");
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasDestroy_v2(cublasHandle_t handle) {
  delete &own(handle);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetStream_v2(cublasHandle_t handle, cudaStream_t stream) {
  own(handle).stream = stream;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasGetStream_v2(cublasHandle_t handle, cudaStream_t* stream) {
  *stream = own(handle).stream;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetWorkspace_v2(cublasHandle_t, void* workspace, size_t bytes) {
  if (bytes > 0) standin_view(workspace, bytes, "workspace of cuBLAS");
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetMathMode(cublasHandle_t handle, cublasMath_t mode) {
  own(handle).math = mode;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasGetMathMode(cublasHandle_t handle, cublasMath_t* mode) {
  *mode = own(handle).math;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetPointerMode_v2(cublasHandle_t handle, cublasPointerMode_t mode) {
  own(handle).pointer_mode = mode;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasGetPointerMode_v2(cublasHandle_t handle, cublasPointerMode_t* mode) {
  *mode = own(handle).pointer_mode;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGemmEx(cublasHandle_t handle, cublasOperation_t op_a, cublasOperation_t op_b, int m,
                            int n, int k, const void* alpha, const void* a, cudaDataType type_a, int lda,
                            const void* b, cudaDataType type_b, int ldb, const void* beta, void* c,
                            cudaDataType type_c, int ldc, cublasComputeType_t compute, cublasGemmAlgo_t) {
  const Sizes sizes{op_a, op_b, m, n, k};
  return product("cublasGemmEx", handle, sizes, {alpha, beta, compute == CUBLAS_COMPUTE_64F},
                 {a, type_a, sizes.rows_of_a(), sizes.columns_of_a(), lda},
                 {b, type_b, sizes.rows_of_b(), sizes.columns_of_b(), ldb}, {c, type_c, m, n, ldc});
}

cublasStatus_t cublasSgemm_v2(cublasHandle_t handle, cublasOperation_t op_a, cublasOperation_t op_b, int m,
                              int n, int k, const float* alpha, const float* a, int lda, const float* b,
                              int ldb, const float* beta, float* c, int ldc) {
  const Sizes sizes{op_a, op_b, m, n, k};
  return product("cublasSgemm", handle, sizes, {alpha, beta},
                 {a, CUDA_R_32F, sizes.rows_of_a(), sizes.columns_of_a(), lda},
                 {b, CUDA_R_32F, sizes.rows_of_b(), sizes.columns_of_b(), ldb}, {c, CUDA_R_32F, m, n, ldc});
}

cublasStatus_t cublasGemmStridedBatchedEx(cublasHandle_t handle, cublasOperation_t op_a,
                                          cublasOperation_t op_b, int m, int n, int k, const void* alpha,
                                          const void* a, cudaDataType type_a, int lda, long long stride_a,
                                          const void* b, cudaDataType type_b, int ldb, long long stride_b,
                                          const void* beta, void* c, cudaDataType type_c, int ldc,
                                          long long stride_c, int batch, cublasComputeType_t compute,
                                          cublasGemmAlgo_t) {
  const Sizes sizes{op_a, op_b, m, n, k};
  return product("cublasGemmStridedBatchedEx", handle, sizes, {alpha, beta, compute == CUBLAS_COMPUTE_64F},
                 {a, type_a, sizes.rows_of_a(), sizes.columns_of_a(), lda, stride_a, batch},
                 {b, type_b, sizes.rows_of_b(), sizes.columns_of_b(), ldb, stride_b, batch},
                 {c, type_c, m, n, ldc, stride_c, batch});
}

cublasStatus_t cublasSgemmStridedBatched(cublasHandle_t handle, cublasOperation_t op_a,
                                         cublasOperation_t op_b, int m, int n, int k, const float* alpha,
                                         const float* a, int lda, long long stride_a, const float* b, int ldb,
                                         long long stride_b, const float* beta, float* c, int ldc,
                                         long long stride_c, int batch) {
  const Sizes sizes{op_a, op_b, m, n, k};
  return product("cublasSgemmStridedBatched", handle, sizes, {alpha, beta},
                 {a, CUDA_R_32F, sizes.rows_of_a(), sizes.columns_of_a(), lda, stride_a, batch},
                 {b, CUDA_R_32F, sizes.rows_of_b(), sizes.columns_of_b(), ldb, stride_b, batch},
                 {c, CUDA_R_32F, m, n, ldc, stride_c, batch});
}
}
