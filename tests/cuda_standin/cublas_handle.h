#pragma once

// libtorch uses one handle for cuBLAS and cublasLt, as the real libraries allow.

#include <cublas_api.h>
#include <cuda_runtime_api.h>

#include <cstddef>

namespace standin {

struct CublasHandle {
  int device = 0;
  cudaStream_t stream = nullptr;
  cublasMath_t math = CUBLAS_DEFAULT_MATH;
  cublasPointerMode_t pointer_mode = CUBLAS_POINTER_MODE_HOST;
};

inline size_t bytes_of(cudaDataType type) {
  switch (type) {
    case CUDA_R_8F_E4M3:
    case CUDA_R_8F_E5M2:
    case CUDA_R_8I:
      return 1;
    case CUDA_R_16F:
    case CUDA_R_16BF:
      return 2;
    case CUDA_R_64F:
    case CUDA_C_32F:
      return 8;
    case CUDA_C_64F:
      return 16;
    default:
      return 4;
  }
}

}  // namespace standin
