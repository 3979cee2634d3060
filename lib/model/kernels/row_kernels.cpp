#include "model/kernels/row_kernels.h"

#include <type_traits>
#include <vector>

#include "base/tensor/parallel.h"
#include "base/util/error.h"
#include "model/kernels/cpu/loops.h"
#include "model/kernels/cuda/kernels.h"
#include "model/kernels/element.h"
#include "model/kernels/reduce.h"

namespace fsdp::kernels {
namespace {

// ---- on the CPU: the loops of cpu/loops.h, on several threads

/// Calls body(first row, rows) on several threads.
template <typename Body>
void for_rows(int64_t rows, int64_t width, const Body& body) {
  util::parallel_for(0, rows, std::max<int64_t>(1, kGrain / std::max<int64_t>(width, 1)),
                     [&](int64_t begin, int64_t end) { body(begin, end - begin); });
}

/// Calls body(part) on several threads.
template <typename Body>
void for_parts(const RowParts& parts, const Body& body) {
  util::parallel_for(0, parts.count(), 1, [&](int64_t begin, int64_t end) {
    for (int64_t part = begin; part < end; ++part) body(part);
  });
}

template <typename T>
class OnCpu {
 public:
  static constexpr Element kElement = std::is_same_v<T, float>       ? Element::kFloat
                                      : std::is_same_v<T, c10::Half> ? Element::kHalf
                                                                     : Element::kBFloat16;
  static const cpu::Loops& loops() { return cpu::loops(kElement); }

  template <auto cpu::Loops::*kLoop>
  static void norm(const NormRows& all) {
    for_rows(all.rows, all.width, [&](int64_t first, int64_t rows) {
      NormRows some = all;
      advance(first * all.width, some.x, some.residual, some.sum, some.y);
      if (some.mean != nullptr) some.mean += first;
      some.reciprocal += first;
      some.rows = rows;
      (loops().*kLoop)(some);
    });
  }

  template <auto cpu::Loops::*kLoop>
  static void norm_backward(const NormGradRows& all, const RowParts& parts) {
    for_parts(parts, [&](int64_t part) {
      const int64_t first = parts.first(part);
      NormGradRows some = all;
      advance(first * all.width, some.dy, some.x, some.dsum, some.dx);
      if (some.mean != nullptr) some.mean += first;
      some.reciprocal += first;
      some.dweight += part * all.width;
      if (some.dbias != nullptr) some.dbias += part * all.width;
      some.rows = parts.rows(part);
      (loops().*kLoop)(some);
    });
  }

  static void rotary(const RotaryRows& all) {
    for_rows(all.rows, all.heads * all.head_dim, [&](int64_t first, int64_t rows) {
      RotaryRows some = all;
      advance(first * all.stride, some.x, some.y);
      some.first += first;
      some.rows = rows;
      loops().rotary(some);
    });
  }

  static void swiglu(const SwiGluRows& all) {
    for_rows(all.rows, all.width, [&](int64_t first, int64_t rows) {
      SwiGluRows some = all;
      advance(first * all.stride, some.gate, some.up);
      advance(first * all.width, some.y);
      some.rows = rows;
      loops().swiglu(some);
    });
  }

  static void swiglu_backward(const SwiGluGradRows& all) {
    for_rows(all.rows, all.width, [&](int64_t first, int64_t rows) {
      SwiGluGradRows some = all;
      advance(first * all.width, some.dy, some.y);
      advance(first * all.stride, some.gate, some.up, some.dgate, some.dup);
      some.rows = rows;
      loops().swiglu_backward(some);
    });
  }

  static void bias_gelu(const BiasGeluRows& all) {
    for_rows(all.rows, all.width, [&](int64_t first, int64_t rows) {
      BiasGeluRows some = all;
      advance(first * all.width, some.x, some.y);
      some.rows = rows;
      loops().bias_gelu(some);
    });
  }

  static void bias_gelu_backward(const BiasGeluGradRows& all, const RowParts& parts) {
    for_parts(parts, [&](int64_t part) {
      BiasGeluGradRows some = all;
      advance(parts.first(part) * all.width, some.dy, some.x, some.dx);
      some.dbias += part * all.width;
      some.rows = parts.rows(part);
      loops().bias_gelu_backward(some);
    });
  }

  static void add_rows(const void* x, float* sums, const RowParts& parts) {
    for_parts(parts, [&](int64_t part) {
      const void* some = x;
      advance(parts.first(part) * parts.width(), some);
      loops().add_rows(some, sums + part * parts.width(), parts.rows(part), parts.width());
    });
  }

  static void totals(const PartTotal* all, int64_t count) {
    for (const PartTotal* each = all; each != all + count; ++each) total(*each);
  }

  static void total(const PartTotal& a) {
    cpu::loops(Element::kFloat).add_rows(a.sums + a.width, a.sums, a.parts - 1, a.width);
    if (a.to_fp32) {
      finish(a, static_cast<float*>(a.to));
    } else {
      finish(a, static_cast<T*>(a.to));
    }
  }

  static void count_targets(const int64_t* targets, int64_t rows, double* counted) {
    *counted =
        static_cast<double>(std::max<int64_t>(1, rows - std::count(targets, targets + rows, kIgnored)));
  }

  static void losses(const LossRows& a) {
    const auto scale = static_cast<float>(a.differentiates ? a.factor / *a.counted : 0);
    util::parallel_for(
        0, a.rows, std::max<int64_t>(1, kGrain / a.vocabulary), [&](int64_t begin, int64_t end) {
          for (int64_t row = begin; row < end; ++row) {
            T* logits = static_cast<T*>(a.logits) + row * a.stride;
            if (a.targets[row] == kIgnored) {
              if (a.found != nullptr) {
                a.found[row] = {};
                continue;
              }
              if (a.differentiates) std::fill_n(logits, a.vocabulary, T(0));
              a.losses[row] = 0;
              continue;
            }
            const float row_scale = a.row_factors != nullptr ? scale * a.row_factors[row] : scale;
            const double loss =
                loops().cross_entropy({.logits = logits,
                                       .targets = a.targets + row,
                                       .rows = 1,
                                       .vocabulary = a.vocabulary,
                                       .scale = row_scale,
                                       .label_smoothing = a.label_smoothing,
                                       .z_loss = a.z_loss,
                                       .first = a.first,
                                       .whole = a.whole,
                                       .found = a.found != nullptr ? a.found + row : nullptr,
                                       .known = a.known != nullptr ? a.known + row : nullptr});
            if (a.found == nullptr) a.losses[row] = loss;
            if (a.differentiates && a.found == nullptr && row_scale == 0) {
              std::fill_n(logits, a.vocabulary, T(0));
            }
          }
        });
  }

  static void mean_loss(const double* losses, int64_t rows, const double* counted, float* mean) {
    double sum = 0;
    for (int64_t row = 0; row < rows; ++row) sum += losses[row];
    *mean = static_cast<float>(sum / *counted);
  }

  static void scale(void* x, int64_t n, const float* factor) {
    if (*factor == 1) return;
    T* values = static_cast<T*>(x);
    util::parallel_for(0, n, kGrain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) values[i] = static_cast<float>(values[i]) * *factor;
    });
  }

  static void sum_of_squares(const void* x, int64_t n, double*, double* sum) {
    const int64_t runs = (n + kSquareRun - 1) / kSquareRun;
    std::vector<double> sums(static_cast<size_t>(runs));
    util::parallel_for(0, runs, 2048, [&](int64_t first, int64_t last) {
      for (int64_t run = first; run < last; ++run) {
        const int64_t begin = run * kSquareRun;
        sums[static_cast<size_t>(run)] =
            loops().sum_of_squares(static_cast<const T*>(x) + begin, std::min(kSquareRun, n - begin));
      }
    });
    *sum = 0;
    for (double run : sums) *sum += run;
  }

 private:
  template <typename... Pointers>
  static void advance(int64_t elements, Pointers&... pointers) {
    (advance_one(elements, pointers), ...);
  }
  static void advance_one(int64_t elements, const void*& pointer) {
    if (pointer != nullptr) pointer = static_cast<const T*>(pointer) + elements;
  }
  static void advance_one(int64_t elements, void*& pointer) {
    if (pointer != nullptr) pointer = static_cast<T*>(pointer) + elements;
  }

  template <typename To>
  static void finish(const PartTotal& a, To* to) {
    for (int64_t i = 0; i < a.width; ++i) {
      to[i] = a.adds ? static_cast<float>(to[i]) + a.sums[i] : a.sums[i];
    }
  }
};

template <typename T>
constexpr RowKernels make() {
  using Cpu = OnCpu<T>;
  return {.rms_norm = &Cpu::template norm<&cpu::Loops::rms_norm>,
          .rms_norm_backward = &Cpu::template norm_backward<&cpu::Loops::rms_norm_backward>,
          .layer_norm = &Cpu::template norm<&cpu::Loops::layer_norm>,
          .layer_norm_backward = &Cpu::template norm_backward<&cpu::Loops::layer_norm_backward>,
          .rotary = &Cpu::rotary,
          .swiglu = &Cpu::swiglu,
          .swiglu_backward = &Cpu::swiglu_backward,
          .bias_gelu = &Cpu::bias_gelu,
          .bias_gelu_backward = &Cpu::bias_gelu_backward,
          .add_rows = &Cpu::add_rows,
          .totals = &Cpu::totals,
          .count_targets = &Cpu::count_targets,
          .losses = &Cpu::losses,
          .mean_loss = &Cpu::mean_loss,
          .scale = &Cpu::scale,
          .sum_of_squares = &Cpu::sum_of_squares};
}

// ---- on meta

/// Converts to a pointer to a function of any arguments that does nothing.
struct Nothing {
  template <typename... Arguments>
  using Function = void (*)(Arguments...);
  template <typename... Arguments>
  constexpr operator Function<Arguments...>() const {  // NOLINT(google-explicit-constructor)
    return [](Arguments...) {};
  }
};

const RowKernels& kernels_on(const c10::Device& device, Element element) {
  constexpr Nothing kNothing;
  static const RowKernels on_meta{kNothing, kNothing, kNothing, kNothing, kNothing, kNothing,
                                  kNothing, kNothing, kNothing, kNothing, kNothing, kNothing,
                                  kNothing, kNothing, kNothing, kNothing};
  if (device.is_cpu()) return cpu_row_kernels(element);
  if (device.is_meta()) return on_meta;
  const RowKernels* kernels = device.is_cuda() ? cuda::row_kernels(element) : nullptr;
  FSDP_CHECK(kernels != nullptr, "no kernels on ", device.str());
  return *kernels;
}

}  // namespace

const RowKernels& cpu_row_kernels(Element element) {
  return with_element(element, []<typename T>(T) -> const RowKernels& {
    static constexpr RowKernels kKernels = make<T>();
    return kKernels;
  });
}

KernelsFor::KernelsFor(Element element, const c10::Device& device)
    : kernels_(kernels_on(device, element)), guard_(device) {}

KernelsFor::KernelsFor(const at::Tensor& x) : KernelsFor(element_of(x), x.device()) {}

}  // namespace fsdp::kernels
