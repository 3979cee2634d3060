#include "model/kernels/cuda/products.h"

#include <ATen/cuda/CUDAContextLight.h>
#include <ATen/cuda/CUDAEvent.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cublasLt.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <compare>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <map>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/device/cuda.h"
#include "base/util/error.h"

namespace fsdp::kernels::cuda {
namespace {

static_assert(sizeof(cublasLtMatmulAlgo_t) == sizeof(ProductAlgorithm));

constexpr int kMostAlgorithms = 8;
constexpr int kRounds = 4;  ///< the first of which is not counted

void check(cublasStatus_t status, const char* what) {
  FSDP_CHECK(status == CUBLAS_STATUS_SUCCESS, what, " failed: ", cublasLtGetStatusString(status));
}

template <typename Handle, cublasStatus_t (*destroy)(Handle)>
using Owned = std::unique_ptr<std::remove_pointer_t<Handle>,
                              decltype([](Handle handle) { static_cast<void>(destroy(handle)); })>;
using Description = Owned<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>;
using Layout = Owned<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;
using Preference = Owned<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>;

cudaDataType_t type_of(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return CUDA_R_32F;
    case at::kHalf:
      return CUDA_R_16F;
    case at::kBFloat16:
      return CUDA_R_16BF;
    case at::kFloat8_e4m3fn:
      return CUDA_R_8F_E4M3;
    case at::kFloat8_e5m2:
      return CUDA_R_8F_E5M2;
    default:
      FSDP_CHECK(false, "cublasLt has no type for ", c10::toString(type));
  }
}

/// A matrix as cublasLt sees it, column by column: [columns, rows] of ours.
struct Matrix {
  int64_t leading = 0;
  bool is_flipped = false;  ///< our columns are contiguous, not our rows

  auto operator<=>(const Matrix&) const = default;
  static std::optional<Matrix> of(const at::Tensor& x) {
    if (x.size(0) < 2 || x.size(1) < 2) return std::nullopt;
    if (x.stride(1) == 1 && x.stride(0) >= x.size(1)) return Matrix{x.stride(0), false};
    if (x.stride(0) == 1 && x.stride(1) >= x.size(0)) return Matrix{x.stride(1), true};
    return std::nullopt;
  }
};

/// The low bits that all addresses have as 0, 256 at most.
uint32_t alignment_of(std::initializer_list<const at::Tensor*> tensors) {
  uint64_t addresses = 256;
  for (const at::Tensor* x : tensors) {
    if (x->defined()) addresses |= reinterpret_cast<uintptr_t>(x->const_data_ptr());
  }
  return uint32_t{1} << std::countr_zero(addresses);
}

struct Shape {
  int device = 0;
  int64_t rows = 0, columns = 0, depth = 0;
  Matrix a, b, c;
  Matrix added = {}, beside = {};  ///< leading 0: none
  at::ScalarType type = at::kBFloat16, type_of_b = at::kBFloat16, result = at::kBFloat16;
  bool is_biased = false;
  Epilogue epilogue = Epilogue::kNone;
  uint32_t alignment = 16;

  auto operator<=>(const Shape&) const = default;

  static std::optional<Shape> of(const GpuProduct& product) {
    const auto& [c, a, b, adds, bias, added, epilogue, beside, only_tries, scale_of_a, scale_of_b] = product;
    const auto ca = Matrix::of(a), cb = Matrix::of(b), cc = Matrix::of(c);
    if (!have_types_of_a_product(product) || !ca || !cb || !cc || cc->is_flipped) return std::nullopt;
    Shape shape{.device = c.get_device(),
                .rows = c.size(0),
                .columns = c.size(1),
                .depth = a.size(1),
                .a = *ca,
                .b = *cb,
                .c = *cc,
                .type = a.scalar_type(),
                .type_of_b = b.scalar_type(),
                .result = c.scalar_type(),
                .is_biased = bias.defined(),
                .epilogue = epilogue,
                .alignment = alignment_of({&a, &b, &c, &bias, &added, &beside})};
    if (bias.defined() && !is_vector_like(bias, c)) return std::nullopt;
    if (added.defined() && !shape.takes(added, shape.added)) return std::nullopt;
    if (epilogue == Epilogue::kColumnSums) {
      if (!is_vector_like(beside, c)) return std::nullopt;
    } else if (epilogue != Epilogue::kNone) {
      // cublasLt keeps what is beside in the result's type, in rows of whole packs.
      const bool is_beside = shape.result == shape.type && shape.takes(beside, shape.beside);
      if (!is_beside || shape.beside.leading % 8 != 0) return std::nullopt;
    }
    return shape.alignment >= 16 ? std::optional(shape) : std::nullopt;
  }

  std::string text() const {
    const auto matrix = [](const Matrix& x) { return concat(x.leading, x.is_flipped ? "t" : ""); };
    static constexpr std::array<const char*, 4> kEpilogues{"", " gelu", " gelu gradient", " column sums"};
    return concat(rows, " x ", columns, " x ", depth, " ", c10::toString(type), " to ", c10::toString(result),
                  " ", matrix(a), " ", matrix(b), " ", matrix(c), is_biased ? " bias" : "",
                  added.leading > 0 ? concat(" added ", added.leading) : "",
                  kEpilogues.at(static_cast<size_t>(epilogue)), " aligned ", alignment);
  }

 private:
  static bool have_types_of_a_product(const GpuProduct& product) {
    const at::ScalarType a = product.a.scalar_type(), b = product.b.scalar_type(),
                         c = product.c.scalar_type();
    if (at::isFloat8Type(a)) {
      return at::isFloat8Type(b) && product.scale_of_a.defined() && product.scale_of_b.defined() &&
             (c == at::kBFloat16 || c == at::kFloat);
    }
    return (a == at::kBFloat16 || a == at::kHalf) && b == a && (c == a || c == at::kFloat);
  }
  static bool is_vector_like(const at::Tensor& x, const at::Tensor& c) {
    return x.scalar_type() == c.scalar_type() && x.dim() == 1 && x.size(0) == c.size(1) && x.is_contiguous();
  }
  bool takes(const at::Tensor& x, Matrix& as) const {
    const auto found = x.dim() == 2 ? Matrix::of(x) : std::nullopt;
    if (!found || found->is_flipped || x.scalar_type() != result || x.size(0) != rows || x.size(1) != columns)
      return false;
    as = *found;
    return true;
  }
};

Layout layout(at::ScalarType type, int64_t rows, int64_t columns, const Matrix& matrix) {
  cublasLtMatrixLayout_t made = nullptr;
  const auto inner = static_cast<uint64_t>(matrix.is_flipped ? rows : columns),
             outer = static_cast<uint64_t>(matrix.is_flipped ? columns : rows);
  check(cublasLtMatrixLayoutCreate(&made, type_of(type), inner, outer, matrix.leading),
        "cublasLtMatrixLayoutCreate");
  return Layout(made);
}

/// Descriptions of products of a shape for cublasLt, which computes c^T = b^T a^T.
class Plan {
 public:
  explicit Plan(const Shape& shape)
      : text_(shape.text()),
        a_(layout(shape.type, shape.rows, shape.depth, shape.a)),
        b_(layout(shape.type_of_b, shape.depth, shape.columns, shape.b)),
        c_(layout(shape.result, shape.rows, shape.columns, shape.c)),
        added_(shape.added.leading > 0 ? layout(shape.result, shape.rows, shape.columns, shape.added)
                                       : nullptr) {
    cublasLtMatmulDesc_t made = nullptr;
    check(cublasLtMatmulDescCreate(&made, CUBLAS_COMPUTE_32F, CUDA_R_32F), "cublasLtMatmulDescCreate");
    description_.reset(made);
    set(CUBLASLT_MATMUL_DESC_TRANSA, shape.b.is_flipped ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(CUBLASLT_MATMUL_DESC_TRANSB, shape.a.is_flipped ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue_of(shape));
    if (shape.is_biased || shape.epilogue == Epilogue::kColumnSums) {
      set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, static_cast<int32_t>(type_of(shape.result)));
    }
    if (shape.beside.leading > 0) set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, shape.beside.leading);
  }

  const std::string& text() const { return text_; }

  /// Returns the algorithms that the library proposes, the likeliest first. Partial sums are added in fp32,
  /// in an order that is always the same.
  std::vector<ProductAlgorithm> proposed(const Shape& shape, const GpuProduct& product) {
    point_at(product);  // the library sees from the addresses how they are aligned
    cublasLtMatmulPreference_t made = nullptr;
    check(cublasLtMatmulPreferenceCreate(&made), "cublasLtMatmulPreferenceCreate");
    const Preference preference(made);
    const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t key, auto value) {
      check(cublasLtMatmulPreferenceSetAttribute(preference.get(), key, &value, sizeof(value)),
            "cublasLtMatmulPreferenceSetAttribute");
    };
    prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t{at::cuda::getCUDABlasLtWorkspaceSize()});
    prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
    for (const auto key :
         {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
          CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
      prefer(key, shape.alignment);
    }
    std::array<cublasLtMatmulHeuristicResult_t, kMostAlgorithms> results{};
    int found = 0;
    if (cublasLtMatmulAlgoGetHeuristic(at::cuda::getCurrentCUDABlasLtHandle(), description_.get(), b_.get(),
                                       a_.get(), added_or_c(), c_.get(), preference.get(), kMostAlgorithms,
                                       results.data(), &found) != CUBLAS_STATUS_SUCCESS) {
      return {};
    }
    std::vector<ProductAlgorithm> algorithms;
    for (int i = 0; i < found; ++i) {
      const auto& result = results.at(static_cast<size_t>(i));
      if (result.state != CUBLAS_STATUS_SUCCESS) continue;
      std::memcpy(algorithms.emplace_back().data(), &result.algo, sizeof(result.algo));
    }
    return algorithms;
  }

  bool proposes(const ProductAlgorithm& algorithm, const Shape& shape, const GpuProduct& product) {
    const std::vector<ProductAlgorithm> all = proposed(shape, product);
    return std::ranges::find(all, algorithm) != all.end();
  }

  /// Returns false if the library refuses to.
  bool run(const GpuProduct& product, const ProductAlgorithm& algorithm) {
    point_at(product);
    const float alpha = 1, beta = product.adds || added_ ? 1 : 0;
    cublasLtMatmulAlgo_t words{};
    std::memcpy(&words, algorithm.data(), sizeof(words));
    void* const c = product.c.data_ptr();
    const void* const added = added_ ? product.added.const_data_ptr() : c;
    return cublasLtMatmul(at::cuda::getCurrentCUDABlasLtHandle(), description_.get(), &alpha,
                          product.b.const_data_ptr(), b_.get(), product.a.const_data_ptr(), a_.get(), &beta,
                          added, added_or_c(), c, c_.get(), &words, at::cuda::getCUDABlasLtWorkspace(),
                          at::cuda::getCUDABlasLtWorkspaceSize(),
                          c10::cuda::getCurrentCUDAStream()) == CUBLAS_STATUS_SUCCESS;
  }

  std::optional<ProductChoice> first;   ///< what the library proposes first, once it was asked
  int64_t choices = 0;                  ///< ProductChoices::id() of those that it is from
  std::optional<ProductChoice> choice;  ///< the one that is used, once it is known

 private:
  template <typename T>
  void set(cublasLtMatmulDescAttributes_t key, const T& value) {
    check(cublasLtMatmulDescSetAttribute(description_.get(), key, &value, sizeof(value)),
          "cublasLtMatmulDescSetAttribute");
  }
  static cublasLtEpilogue_t epilogue_of(const Shape& shape) {
    switch (shape.epilogue) {
      case Epilogue::kNone:
        return shape.is_biased ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
      case Epilogue::kGelu:
        return shape.is_biased ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
      case Epilogue::kGeluGradient:
        return CUBLASLT_EPILOGUE_DGELU;
      case Epilogue::kColumnSums:
        return CUBLASLT_EPILOGUE_BGRADA;  // our b is cublasLt's A
    }
    FSDP_CHECK(false, "unknown epilogue");
  }
  void point_at(const GpuProduct& product) {
    const bool sums = product.epilogue == Epilogue::kColumnSums;
    const at::Tensor& vector = sums ? product.beside : product.bias;
    if (vector.defined()) set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, vector.const_data_ptr());
    if (product.beside.defined() && !sums) {
      set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, product.beside.const_data_ptr());
    }
    // Our b is cublasLt's A.
    if (product.scale_of_b.defined()) {
      set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, product.scale_of_b.const_data_ptr());
      set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, product.scale_of_a.const_data_ptr());
    }
  }
  cublasLtMatrixLayout_t added_or_c() const { return added_ ? added_.get() : c_.get(); }

  std::string text_;
  Description description_;
  Layout a_, b_, c_, added_;  ///< added_: null if nothing is added
};

/// Computes the product in the other way and by each algorithm in turn. Returns the least seconds of each.
std::vector<double> tried(Plan& plan, const GpuProduct& product,
                          const std::vector<ProductAlgorithm>& algorithms,
                          const std::function<void()>& otherwise) {
  std::vector<at::cuda::CUDAEvent> events;
  const size_t ways = algorithms.size() + 1;
  for (size_t i = 0; i <= kRounds * ways; ++i) events.emplace_back(cudaEventDefault);
  std::vector<bool> works(ways, true);
  events[0].record();
  for (size_t i = 0; i < kRounds * ways; ++i) {
    const size_t way = i % ways;
    way == 0 ? otherwise() : void(works[way] = works[way] && plan.run(product, algorithms[way - 1]));
    events[i + 1].record();
  }
  events.back().synchronize();
  std::vector<double> seconds(ways, std::numeric_limits<double>::infinity());
  for (size_t i = ways; i < kRounds * ways; ++i) {
    double& least = seconds[i % ways];
    if (works[i % ways]) least = std::min(least, 1e-3 * events[i].elapsed_time(events[i + 1]));
  }
  return seconds;
}

/// Descriptions hold the bias's address during a call, so each thread has its own.
Plan& plan_of(const Shape& shape) {
  thread_local std::map<Shape, Plan> plans;
  return plans.try_emplace(shape, shape).first->second;
}

/// Whether the thread is within a trial: then a product within `otherwise` takes what its own has chosen.
thread_local bool is_trying = false;

void try_product(ProductChoices& choices, Plan& plan, const Shape& shape, const GpuProduct& product,
                 const std::function<void()>& otherwise) {
  const std::vector<ProductAlgorithm> algorithms = plan.proposed(shape, product);
  const bool before = std::exchange(is_trying, true);
  const std::vector<double> seconds = tried(plan, product, algorithms, otherwise);
  is_trying = before;
  double once = 0;
  for (const double each : seconds) once += std::isfinite(each) ? each : 0;
  choices.choose(plan.text(), algorithms, seconds, kRounds * once);
}

bool is_captured() {
  return c10::cuda::currentStreamCaptureStatusMayInitCtx() != c10::cuda::CaptureStatus::None;
}

}  // namespace

bool multiply_by_choice(ProductChoices& choices, const GpuProduct& product,
                        const std::function<void()>& otherwise) {
  const auto shape = Shape::of(product);
  if (!shape) return false;
  const c10::cuda::CUDAGuard guard(product.c.device());
  Plan& plan = plan_of(*shape);
  if (std::exchange(plan.choices, choices.id()) != choices.id()) plan.choice.reset();
  if (!plan.choice) {
    std::optional<ProductChoice> found = choices.find(plan.text());
    // The words of a choice may come from a file that somebody changed: the library gets only its own ones.
    if (found && *found && !plan.proposes(**found, *shape, product)) found = ProductChoice();
    plan.choice = found;
  }
  // A trial computes the product several times, so it must not add.
  if (!plan.choice && !product.adds && !is_captured() && choices.tries(plan.text())) {
    try_product(choices, plan, *shape, product, otherwise);
  }
  const std::optional<ProductChoice> choice =
      plan.choice || !is_trying ? plan.choice : choices.find(plan.text(), /*tried=*/true);
  if (product.only_tries || !choice || !*choice) return false;
  FSDP_CHECK(plan.run(product, **choice), "cublasLtMatmul failed for ", plan.text());
  return true;
}

bool multiply_as_proposed(const GpuProduct& product) {
  const auto shape = Shape::of(product);
  if (!shape) return false;
  const c10::cuda::CUDAGuard guard(product.c.device());
  Plan& plan = plan_of(*shape);
  if (!plan.first) {
    const std::vector<ProductAlgorithm> all = plan.proposed(*shape, product);
    plan.first = all.empty() ? ProductChoice() : ProductChoice(all.front());
  }
  return *plan.first && plan.run(product, **plan.first);
}

std::string product_library(const at::Device& device) {
  return concat(util::cuda_device(device.index()).name, ", cublasLt ", cublasLtGetVersion());
}

}  // namespace fsdp::kernels::cuda
