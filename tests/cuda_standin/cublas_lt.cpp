// cublasLt: the products of linear layers with a bias, and of float8, whose conditions are checked.

#include <cublasLt.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "cublas_handle.h"
#include "products.h"
#include "settings.h"
#include "standin.h"

namespace standin {
namespace {

struct Layout {
  cudaDataType type;
  uint64_t rows, columns;
  int64_t leading;
  int32_t batch = 1;
  int64_t stride = 0;

  bool is_float8() const { return type == CUDA_R_8F_E4M3 || type == CUDA_R_8F_E5M2; }
  size_t bytes() const {
    if (rows == 0 || columns == 0) return 0;
    return static_cast<size_t>((batch - 1) * stride + (static_cast<int64_t>(columns) - 1) * leading +
                               static_cast<int64_t>(rows)) *
           bytes_of(type);
  }
};

struct Description {
  cublasComputeType_t compute{};
  std::map<int, std::vector<char>> attributes{};

  template <typename T>
  T get(int key, T fallback) const {
    const auto found = attributes.find(key);
    if (found != attributes.end())
      std::memcpy(&fallback, found->second.data(), std::min(sizeof(T), found->second.size()));
    return fallback;
  }
  /// Terms of a sum, from the first factor.
  long long depth(const Layout& a) const {
    return static_cast<long long>(get(CUBLASLT_MATMUL_DESC_TRANSA, 0) != CUBLAS_OP_N ? a.rows : a.columns);
  }
  /// Whether each row of a transposed factor has a scale. Both factors must have the same mode.
  bool scales_rows() const {
    const auto mode = [&](int key) { return get(key, int32_t{CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F}); };
    const int32_t of_a = mode(CUBLASLT_MATMUL_DESC_A_SCALE_MODE);
    if (of_a != mode(CUBLASLT_MATMUL_DESC_B_SCALE_MODE) ||
        (of_a != CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F &&
         of_a != CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F)) {
      standin_violation("cublasLt, float8: scales of a mode that the stand-in does not know");
    }
    return of_a == CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
  }
  int epilogue() const { return get(CUBLASLT_MATMUL_DESC_EPILOGUE, int{CUBLASLT_EPILOGUE_DEFAULT}); }
  void set(int key, const void* value, size_t bytes) {
    const char* begin = static_cast<const char*>(value);
    attributes[key].assign(begin, begin + bytes);
  }
};

template <typename Own, typename Handle>
Own& own(Handle handle) {
  return *reinterpret_cast<Own*>(handle);
}

/// Why the real library would refuse this product; empty if it would not.
std::string float8_obstacle(const Description& product, const Layout& a, const Layout& b, uint64_t m,
                            uint64_t n, uint64_t k) {
  if (a.type == CUDA_R_8F_E5M2 && b.type == CUDA_R_8F_E5M2) return "both factors are e5m2";
  if (product.get(CUBLASLT_MATMUL_DESC_TRANSA, 0) != CUBLAS_OP_T ||
      product.get(CUBLASLT_MATMUL_DESC_TRANSB, 0) != CUBLAS_OP_N) {
    return "the first factor must be transposed, and the second not";
  }
  if (m % 16 != 0 || n % 16 != 0 || k % 16 != 0 || a.leading % 16 != 0 || b.leading % 16 != 0) {
    return "a size is no multiple of 16";
  }
  if (product.compute != CUBLAS_COMPUTE_32F) return "sums must be fp32";
  for (const auto key : {CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER}) {
    const auto* scale = product.get<const void*>(key, nullptr);
    if (scale == nullptr) return "a factor has no scale";
    const bool is_of_a = key == CUBLASLT_MATMUL_DESC_A_SCALE_POINTER;
    const uint64_t scales = product.scales_rows() ? (is_of_a ? m : n) : 1;
    standin_view(scale, scales * sizeof(float), "scale of a float8 product");
  }
  return "";
}

bool has_beside(int epilogue) { return (epilogue & 128) != 0; }
bool has_vector(int epilogue) {
  return (epilogue & CUBLASLT_EPILOGUE_BIAS) != 0 || epilogue == CUBLASLT_EPILOGUE_BGRADA;
}

/// As cublasLt.h describes the attributes.
std::string epilogue_obstacle(const Description& product, const Layout& d) {
  const int epilogue = product.epilogue();
  switch (epilogue) {
    case CUBLASLT_EPILOGUE_DEFAULT:
    case CUBLASLT_EPILOGUE_BIAS:
    case CUBLASLT_EPILOGUE_BGRADA:
    case CUBLASLT_EPILOGUE_GELU_AUX:
    case CUBLASLT_EPILOGUE_GELU_AUX_BIAS:
    case CUBLASLT_EPILOGUE_DGELU:
      break;
    default:
      return std::to_string(epilogue) + " is not known here";
  }
  const auto address = [&](int key) {
    return reinterpret_cast<uintptr_t>(product.get<const void*>(key, nullptr));
  };
  if (has_vector(epilogue) && address(CUBLASLT_MATMUL_DESC_BIAS_POINTER) == 0) return "it has no vector";
  if (!has_beside(epilogue)) return "";
  const auto leading = product.get(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, int64_t{0});
  if (leading % 8 != 0 || leading < static_cast<int64_t>(d.rows)) return "the rows of what is beside";
  if (d.type != CUDA_R_16BF && d.type != CUDA_R_16F) return "GELU of another type";
  const uintptr_t beside = address(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER);
  return beside != 0 && beside % 16 == 0 ? "" : "the address beside is null or no multiple of 16";
}

std::string obstacle(const Description& product, const Layout& a, const Layout& b, const Layout& d) {
  const bool transposed_a = product.get(CUBLASLT_MATMUL_DESC_TRANSA, 0) != CUBLAS_OP_N,
             transposed_b = product.get(CUBLASLT_MATMUL_DESC_TRANSB, 0) != CUBLAS_OP_N;
  const uint64_t m = transposed_a ? a.columns : a.rows, k = transposed_a ? a.rows : a.columns;
  const uint64_t n = transposed_b ? b.rows : b.columns, k_of_b = transposed_b ? b.columns : b.rows;
  if (k != k_of_b || d.rows != m || d.columns != n) return "cublasLt: the shapes do not fit";
  if (const std::string why = epilogue_obstacle(product, d); !why.empty())
    return "cublasLt, epilogue: " + why;
  const std::string why = a.is_float8() ? float8_obstacle(product, a, b, m, n, k) : "";
  return why.empty() ? why : "cublasLt, float8: " + why;
}

constexpr int kAlgorithms = 3;
constexpr uint64_t kAlgorithmMark = 0x57414e44494eU;

bool is_proposed(const cublasLtMatmulAlgo_t& algorithm) {
  return algorithm.data[0] == kAlgorithmMark && algorithm.data[1] < kAlgorithms;
}

struct Memory {
  const void *a, *b, *c;
  void* d;
  double alpha, beta;
};

/// The addresses of the device -> the product of the host's.
Product product_of(const Description& description, const Memory& memory, const Layout& of_a,
                   const Layout& of_b, const Layout& of_c, const Layout& of_d) {
  const char* const name = "cublasLtMatmul";
  const auto operand = [&](const void* data, const Layout& layout, int operation) {
    const size_t bytes = layout.bytes();
    return Operand{bytes > 0 ? standin_view(data, bytes, name) : nullptr, layout.type, layout.leading,
                   layout.stride, operation != CUBLAS_OP_N};
  };
  const int op_a = description.get(CUBLASLT_MATMUL_DESC_TRANSA, 0),
            op_b = description.get(CUBLASLT_MATMUL_DESC_TRANSB, 0);
  Product product{.m = static_cast<long long>(of_d.rows),
                  .n = static_cast<long long>(of_d.columns),
                  .k = static_cast<long long>(op_a == CUBLAS_OP_N ? of_a.columns : of_a.rows),
                  .batch = of_d.batch,
                  .alpha = memory.alpha,
                  .beta = memory.beta,
                  .a = operand(memory.a, of_a, op_a),
                  .b = operand(memory.b, of_b, op_b),
                  .d = operand(memory.d, of_d, CUBLAS_OP_N)};
  if (product.beta != 0) product.c = operand(memory.c, of_c, CUBLAS_OP_N);
  const int epilogue = description.epilogue();
  if (has_vector(epilogue)) {
    const auto type =
        static_cast<cudaDataType>(description.get(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, int32_t{of_d.type}));
    auto* data = description.get<void*>(CUBLASLT_MATMUL_DESC_BIAS_POINTER, nullptr);
    Operand& vector = epilogue == CUBLASLT_EPILOGUE_BGRADA ? product.sums_of_a : product.bias;
    vector = {standin_view(data, of_d.rows * bytes_of(type), name), type};
    vector.leading = product.m;
  }
  if (has_beside(epilogue)) {
    Layout beside = of_d;
    beside.leading = description.get(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, int64_t{0});
    (epilogue == CUBLASLT_EPILOGUE_DGELU ? product.gelu_input : product.gelu_input_to) = operand(
        description.get<void*>(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, nullptr), beside, CUBLAS_OP_N);
  }
  product.scales_rows = description.scales_rows();
  const auto scale = [&](cublasLtMatmulDescAttributes_t key, long long rows) -> const float* {
    const auto* data = description.get<const void*>(key, nullptr);
    const size_t bytes = sizeof(float) * static_cast<size_t>(product.scales_rows ? rows : 1);
    return data != nullptr ? static_cast<const float*>(standin_view(data, bytes, name)) : nullptr;
  };
  product.scale_a = scale(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, product.m);
  product.scale_b = scale(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, product.n);
  return product;
}

}  // namespace
}  // namespace standin

using namespace standin;

extern "C" {

size_t cublasLtGetVersion() { return 130100; }

#undef cublasLtMatmulDescCreate
cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* made, cublasComputeType_t compute,
                                        cudaDataType_t) {
  *made = reinterpret_cast<cublasLtMatmulDesc_t>(new Description{.compute = compute});
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t product) {
  delete &own<Description>(product);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t product,
                                              cublasLtMatmulDescAttributes_t key, const void* value,
                                              size_t bytes) {
  own<Description>(product).set(key, value, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* made) {
  *made = reinterpret_cast<cublasLtMatmulPreference_t>(new Description);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  delete &own<Description>(preference);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t key,
                                                    const void* value, size_t bytes) {
  own<Description>(preference).set(key, value, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* made, cudaDataType type, uint64_t rows,
                                          uint64_t columns, int64_t leading) {
  *made = reinterpret_cast<cublasLtMatrixLayout_t>(new Layout{type, rows, columns, leading});
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  delete &own<Layout>(layout);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t key, const void* value,
                                                size_t) {
  Layout& changed = own<Layout>(layout);
  if (key == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT) std::memcpy(&changed.batch, value, sizeof(changed.batch));
  if (key == CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET)
    std::memcpy(&changed.stride, value, sizeof(changed.stride));
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t product,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t, int most,
                                              cublasLtMatmulHeuristicResult_t* results, int* found) {
  const std::string why = obstacle(own<Description>(product), own<Layout>(a), own<Layout>(b), own<Layout>(d));
  *found = why.empty() ? std::min(most, kAlgorithms) : 0;
  if (!why.empty()) {
    standin_violation(why.c_str());
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  for (int i = 0; i < *found; ++i) {
    results[i] = {};
    results[i].state = CUBLAS_STATUS_SUCCESS;
    results[i].algo.data[0] = kAlgorithmMark;
    results[i].algo.data[1] = static_cast<uint64_t>(i);
  }
  return CUBLAS_STATUS_SUCCESS;
}

const char* cublasLtGetStatusString(cublasStatus_t status) {
  return status == CUBLAS_STATUS_SUCCESS ? "success" : "failure of the stand-in";
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t product, const void* alpha,
                              const void* a, cublasLtMatrixLayout_t layout_a, const void* b,
                              cublasLtMatrixLayout_t layout_b, const void* beta, const void* c,
                              cublasLtMatrixLayout_t layout_c, void* d, cublasLtMatrixLayout_t layout_d,
                              const cublasLtMatmulAlgo_t* algorithm, void* workspace, size_t workspace_bytes,
                              cudaStream_t stream) {
  const Layout &of_a = own<Layout>(layout_a), &of_b = own<Layout>(layout_b), &of_d = own<Layout>(layout_d);
  const std::string why = obstacle(own<Description>(product), of_a, of_b, of_d);
  if (!why.empty()) standin_violation(why.c_str());
  if (algorithm != nullptr && !is_proposed(*algorithm)) {
    standin_violation("cublasLtMatmul: an algorithm that cublasLtMatmulAlgoGetHeuristic has not proposed");
  }
  const auto addresses =
      reinterpret_cast<uintptr_t>(a) | reinterpret_cast<uintptr_t>(b) | reinterpret_cast<uintptr_t>(d);
  if (of_a.is_float8() && addresses % 16 != 0)
    standin_violation("cublasLt, float8: an address is no multiple of 16");
  if (workspace_bytes > 0) standin_view(workspace, workspace_bytes, "workspace of cublasLt");
  const Description& description = own<Description>(product);
  const int epilogue = description.epilogue();
  std::vector<Range> ranges = {{a, of_a.bytes()}, {b, of_b.bytes()}, {d, of_d.bytes(), true}};
  if (*static_cast<const float*>(beta) != 0 && c != d) ranges.push_back({c, own<Layout>(layout_c).bytes()});
  if (has_vector(epilogue)) {
    ranges.push_back({description.get<const void*>(CUBLASLT_MATMUL_DESC_BIAS_POINTER, nullptr),
                      of_d.rows * bytes_of(of_d.type), epilogue == CUBLASLT_EPILOGUE_BGRADA});
  }
  if (of_a.is_float8()) {
    const size_t rows = description.scales_rows() ? of_d.rows : 1,
                 columns = description.scales_rows() ? of_d.columns : 1;
    ranges.push_back(
        {description.get<const void*>(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, nullptr), rows * sizeof(float)});
    ranges.push_back({description.get<const void*>(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, nullptr),
                      columns * sizeof(float)});
  }
  if (has_beside(epilogue)) {
    ranges.push_back({description.get<const void*>(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, nullptr),
                      of_d.bytes(), epilogue != CUBLASLT_EPILOGUE_DGELU});
  }
  for (const Range& range : ranges) {
    if (range.bytes > 0) standin_view(range.data, range.bytes, "cublasLtMatmul");
  }
  standin_count("products");
  standin_launched(launch_text(static_cast<long long>(of_d.rows), static_cast<long long>(of_d.columns),
                               own<Description>(product).depth(of_a), of_d.batch, of_d.type)
                       .c_str());
  std::function<void()> work;
  if (standin_computes() != 0 && own<Description>(product).compute != CUBLAS_COMPUTE_64F) {
    const Memory memory{a, b, c, d, *static_cast<const float*>(alpha), *static_cast<const float*>(beta)};
    work = computed(product_of(own<Description>(product), memory, of_a, of_b, own<Layout>(layout_c), of_d));
  }
  const bool is_fastest =
      algorithm != nullptr && standin::settings().fastest_algorithm == static_cast<long>(algorithm->data[1]);
  const char* const name = of_a.is_float8() ? "cublasLtMatmul, float8"
                           : is_fastest     ? kFastestProduct
                                            : "cublasLtMatmul";
  return standin_submit(name, stream, ranges.data(), static_cast<int>(ranges.size()), std::move(work)) == 0
             ? CUBLAS_STATUS_SUCCESS
             : CUBLAS_STATUS_EXECUTION_FAILED;
}
}
