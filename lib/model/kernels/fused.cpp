#include "model/kernels/fused.h"

#include <ATen/Dispatch.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/embedding_dense_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/zeros.h>
#include <c10/core/DeviceGuard.h>

#include <algorithm>
#include <bit>
#include <vector>

#include "base/tensor/parallel.h"
#include "base/util/error.h"
#include "base/util/hash.h"
#include "model/kernels/below_autograd.h"
#include "model/kernels/cuda/kernels.h"
#include "model/kernels/element.h"
#include "model/kernels/gradient_sink.h"
#include "model/kernels/meta.h"
#include "model/kernels/recomputed.h"
#include "model/kernels/reduce.h"
#include "model/kernels/sample_sums.h"

namespace fsdp::kernels {
namespace {

at::Tensor rotated(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin, bool back) {
  at::Tensor y = at::empty(x.sizes(), x.options());
  KernelsFor(x)->rotary({.x = x.data_ptr(),
                         .y = y.data_ptr(),
                         .cos = cos.data_ptr<float>(),
                         .sin = sin.data_ptr<float>(),
                         .rows = x.size(0) * x.size(1),
                         .tokens = x.size(1),
                         .heads = x.size(2),
                         .head_dim = x.size(3),
                         .stride = x.size(2) * x.size(3),
                         .back = back});
  return y;
}

class Rotary final : public torch::autograd::Function<Rotary> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& cos,
                            const at::Tensor& sin) {
    const BelowAutograd below;
    const at::Tensor operand = is_recomputed(x) ? x : at::Tensor();
    save_operands(*context, {operand, cos, sin}, {{0, x}});
    return rotated(x.contiguous(), cos, sin, false);
  }

  static variable_list again(AutogradContext* context) {
    const BelowAutograd below;
    const variable_list saved = operands_of(*context, OperandUse::kForwardAgain);
    return {rotated(saved[0].contiguous(), saved[1], saved[2], false)};
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const BelowAutograd below;
    const variable_list saved = operands_of(*context);
    return {rotated(gradients[0].contiguous(), saved[1], saved[2], true), {}, {}};
  }
};

class SwiGlu final : public torch::autograd::Function<SwiGlu> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& gate, const at::Tensor& up) {
    const BelowAutograd below;
    const at::Tensor g = gate.contiguous(), u = up.contiguous();
    save_operands(*context, {g, u}, {{0, gate}, {1, up}});
    return run(g, u);
  }

  static variable_list again(AutogradContext* context) {
    const BelowAutograd below;
    const variable_list saved = operands_of(*context, OperandUse::kForwardAgain);
    return {run(saved[0].contiguous(), saved[1].contiguous())};
  }

  static variable_list again_with_gradients(AutogradContext* context, const at::Tensor& dy) {
    const BelowAutograd below;
    const variable_list saved = operands_of(*context);
    at::Tensor y = at::empty_like(dy);
    keep_gradients(*context, dy, gradients_of(saved, dy, y));
    return {y};
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const BelowAutograd below;
    variable_list kept = take_kept_gradients(*context, gradients[0]);
    return kept.empty() ? gradients_of(operands_of(*context), gradients[0], {}) : kept;
  }

 private:
  /// Also computes y again in the same pass, if it is defined.
  static variable_list gradients_of(const variable_list& saved, const at::Tensor& given_dy,
                                    const at::Tensor& y) {
    const at::Tensor g = saved[0].contiguous(), u = saved[1].contiguous(), dy = given_dy.contiguous();
    FSDP_CHECK(dy.sizes() == g.sizes(), dy.sizes(), " ", g.sizes());
    at::Tensor dg = at::empty_like(g), du = at::empty_like(u);
    KernelsFor(g)->swiglu_backward({.dy = dy.data_ptr(),
                                    .gate = g.data_ptr(),
                                    .up = u.data_ptr(),
                                    .dgate = dg.data_ptr(),
                                    .dup = du.data_ptr(),
                                    .y = y.defined() ? y.data_ptr() : nullptr,
                                    .rows = rows_of(g),
                                    .width = g.size(-1),
                                    .stride = g.size(-1)});
    return {dg, du};
  }

  static at::Tensor run(const at::Tensor& g, const at::Tensor& u) {
    at::Tensor y = at::empty_like(g);
    KernelsFor(g)->swiglu({.gate = g.data_ptr(),
                           .up = u.data_ptr(),
                           .y = y.data_ptr(),
                           .rows = rows_of(g),
                           .width = g.size(-1),
                           .stride = g.size(-1)});
    return y;
  }
};

class BiasGelu final : public torch::autograd::Function<BiasGelu> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& given, const at::Tensor&,
                            const Parameters& parameters) {
    const BelowAutograd below;
    const at::Tensor x = given.contiguous();
    const at::Tensor& bias = parameters.tensors[0];
    save_operands(*context, {x, bias}, {{0, given}});
    return run(x, bias);
  }

  static variable_list again(AutogradContext* context) {
    const BelowAutograd below;
    const variable_list saved = operands_of(*context, OperandUse::kForwardAgain);
    return {run(saved[0].contiguous(), saved[1])};
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const BelowAutograd below;
    const variable_list saved = operands_of(*context);
    const at::Tensor x = saved[0].contiguous(), &bias = saved[1];
    const at::Tensor dy = gradients[0].contiguous();
    at::Tensor dx = at::empty_like(x);
    const ParameterSums sums(x, 1);
    KernelsFor(x)->bias_gelu_backward({.dy = dy.data_ptr(),
                                       .x = x.data_ptr(),
                                       .bias = bias.data_ptr(),
                                       .dx = dx.data_ptr(),
                                       .dbias = sums.of(0),
                                       .rows = rows_of(x),
                                       .width = bias.size(0)},
                                      sums.parts());
    if (!is_wanted(*context, 1, bias)) return {dx, {}, {}};
    return {dx, deliver(*context, 1, bias, sums.gradients({bias})[0]), {}};
  }

 private:
  static at::Tensor run(const at::Tensor& x, const at::Tensor& bias) {
    at::Tensor y = at::empty_like(x);
    KernelsFor(x)->bias_gelu({.x = x.data_ptr(),
                              .bias = bias.data_ptr(),
                              .y = y.data_ptr(),
                              .rows = rows_of(x),
                              .width = bias.size(0)});
    return y;
  }
};

/// Least columns per thread.
constexpr int64_t kColumns = 64;

/// Computes table [V, D] += rows [N, D] at `ids` [N]. Threads share the columns, not the rows, so that each
/// element is summed in the order of the rows.
template <typename T>
void add_rows(const at::Tensor& table, const at::Tensor& rows, const at::Tensor& ids) {
  if (rows.is_meta()) return;
  const int64_t width = table.size(1), count = ids.numel();
  auto* to = table.data_ptr<float>();
  const T* from = rows.const_data_ptr<T>();
  const int64_t* id = ids.const_data_ptr<int64_t>();
  const int64_t grain = std::max(kColumns, kGrain / std::max<int64_t>(count, 1));
  util::parallel_for(0, width, grain, [&](int64_t begin, int64_t end) {
    for (int64_t row = 0; row < count; ++row) {
      float* sum = to + id[row] * width;
      const T* part = from + row * width;
      for (int64_t i = begin; i < end; ++i) sum[i] += static_cast<float>(part[i]);
    }
  });
}

/// Sets table [V, D] for each id to the sum along the tree of the sums over a sample's rows. A sample without
/// the id counts as 0, which does not change a sum that begins with 0.
template <typename T>
void sum_rows_along_tree(const at::Tensor& table, const at::Tensor& rows, const at::Tensor& ids,
                         int64_t rows_of_sample) {
  table.zero_();
  const auto [sorted, order] = at::sort(ids.flatten(), /*stable=*/true, /*dim=*/0, /*descending=*/false);
  if (rows.is_meta()) return;
  const auto* id = sorted.const_data_ptr<int64_t>();
  const auto* place = order.const_data_ptr<int64_t>();
  const T* from = rows.const_data_ptr<T>();
  auto* to = table.data_ptr<float>();
  const int64_t width = table.size(1), count = ids.numel();
  std::vector<int64_t> begins;
  for (int64_t i = 0; i < count; ++i) {
    if (i == 0 || id[i] != id[i - 1]) begins.push_back(i);
  }
  begins.push_back(count);
  util::parallel_for(
      0, std::ssize(begins) - 1, std::max<int64_t>(1, kGrain / width), [&](int64_t first, int64_t last) {
        std::vector<uint64_t> samples;  // samples whose sums wait to be merged, a stack
        std::vector<float> sums;
        const auto merge = [&] {
          float* left = sums.data() + (samples.size() - 2) * static_cast<size_t>(width);
          for (int64_t k = 0; k < width; ++k) left[k] += left[width + k];
          samples.pop_back();
          sums.resize(samples.size() * static_cast<size_t>(width));
        };
        for (int64_t each = first; each < last; ++each) {
          const auto begin = static_cast<size_t>(each);
          for (int64_t i = begins[begin]; i < begins[begin + 1]; ++i) {
            const auto sample = static_cast<uint64_t>(place[i] / rows_of_sample);
            if (samples.empty() || samples.back() != sample) {
              // The level at which two samples are merged is the highest bit in which they differ.
              const auto level = [](uint64_t one, uint64_t other) { return std::bit_width(one ^ other); };
              while (samples.size() > 1 &&
                     level(samples[samples.size() - 2], samples.back()) < level(samples.back(), sample))
                merge();
              samples.push_back(sample);
              sums.resize(samples.size() * static_cast<size_t>(width), 0.0F);
            }
            float* sum = sums.data() + (samples.size() - 1) * static_cast<size_t>(width);
            const T* part = from + place[i] * width;
            for (int64_t k = 0; k < width; ++k) sum[k] += static_cast<float>(part[k]);
          }
          while (samples.size() > 1) merge();
          std::copy_n(sums.data(), width, to + id[begins[begin]] * width);
          samples.clear();
          sums.clear();
        }
      });
}

/// Does add_rows() on a GPU, for a table that is fp32 or, without `adds`, of the rows' type. Rows are sorted
/// by id, so that the order of each sum is fixed.
void add_rows_on_gpu(const at::Tensor& table, const at::Tensor& rows, const at::Tensor& ids, bool adds) {
  const c10::DeviceGuard guard(rows.device());
  const auto [sorted, order] = at::sort(ids.flatten(), /*stable=*/true, /*dim=*/0, /*descending=*/false);
  if (rows.is_meta()) return;
  cuda::embedding_backward(element_of(rows), {.dy = rows.const_data_ptr(),
                                              .ids = sorted.const_data_ptr<int64_t>(),
                                              .order = order.const_data_ptr<int64_t>(),
                                              .table = table.data_ptr(),
                                              .table_is_fp32 = table.scalar_type() == at::kFloat,
                                              .adds = adds,
                                              .rows = sorted.numel(),
                                              .width = table.size(1)});
}

class Embedding final : public torch::autograd::Function<Embedding> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& weight, const at::Tensor& ids) {
    const BelowAutograd below;
    context->save_for_backward({weight, ids});
    return at::embedding(weight, ids);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const BelowAutograd below;
    const variable_list saved = context->get_saved_variables();
    const at::Tensor& weight = saved[0];
    const at::Tensor dy = gradients[0].contiguous(), ids = saved[1].contiguous();
    if (const SampleSums* sums = SampleSums::current()) {
      return {gradient_along_tree(weight, 1,
                                  [&](int64_t, const at::Tensor& to) {
                                    const int64_t of_sample = sums->rows_of_sample(ids.numel());
                                    with_element(element_of(dy), [&]<typename T>(T) {
                                      sum_rows_along_tree<T>(to, dy, ids, of_sample);
                                    });
                                  }),
              at::Tensor()};
    }
    if (!can_fuse(dy)) return {at::embedding_dense_backward(dy, ids, weight.size(0), -1, false), {}};
    if (auto place = take_gradient_place(weight, at::kFloat)) {
      if (!place->adds) place->memory.zero_();
      if (is_for_cuda(dy)) {
        add_rows_on_gpu(place->memory, dy, ids, place->adds);
      } else {
        with_element(element_of(dy), [&]<typename T>(T) { add_rows<T>(place->memory, dy, ids); });
      }
      return {at::Tensor(), at::Tensor()};
    }
    if (is_for_cuda(dy)) {
      at::Tensor table = at::zeros({weight.size(0), weight.size(1)}, dy.options());
      add_rows_on_gpu(table, dy, ids, /*adds=*/false);
      return {table, at::Tensor()};
    }
    return {at::embedding_dense_backward(dy, ids, weight.size(0), -1, false), at::Tensor()};
  }
};

/// Number of values that justify another thread.
constexpr int64_t kPiece = 16384;

struct DropoutDraw {
  double p = 0;
  uint64_t key = 0;
  int64_t first_row = 0;
  RowPieces pieces = {};
};

/// Drops values [begin, end) of `from`, whose first is the value `first` of its row. One hash decides two
/// values of the row, by 32 bits each.
template <typename T>
void drop_row(const T* from, T* to, int64_t begin, int64_t end, int64_t first, uint64_t row_key,
              uint32_t limit, float scale) {
  const auto choose = [&](int64_t i, uint64_t bits) {
    to[i] = static_cast<uint32_t>(bits) < limit ? T(0) : T(static_cast<float>(from[i]) * scale);
  };
  const auto bits_of = [&](int64_t i) {
    return util::mix64(row_key + static_cast<uint64_t>((first + i) / 2));
  };
  int64_t i = begin;
  if (i < end && (first + i) % 2 != 0) choose(i, bits_of(i) >> 32), ++i;
  for (; i < end; i += 2) {
    const uint64_t bits = bits_of(i);
    choose(i, bits);
    if (i + 1 < end) choose(i + 1, bits >> 32);
  }
}

at::Tensor dropped_on_cpu(const at::Tensor& x, const DropoutDraw& choice) {
  at::Tensor y = at::empty_like(x);
  const int64_t of_row = choice.pieces.count;
  const int64_t rows = x.size(0) * of_row, width = x.numel() / std::max<int64_t>(rows, 1);
  const auto limit = static_cast<uint32_t>(choice.p * 4294967296.0);
  const auto scale = static_cast<float>(1 / (1 - choice.p));
  // Rows are cut into pieces of even length, so that the two values of a hash stay together.
  const int64_t pieces = std::max<int64_t>(1, (width + kPiece - 1) / kPiece);
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, x.scalar_type(), "dropout", [&] {
    const auto* from = x.const_data_ptr<scalar_t>();
    auto* to = y.data_ptr<scalar_t>();
    util::parallel_for(
        0, rows * pieces, std::max<int64_t>(1, kPiece / std::max<int64_t>(1, width)),
        [&](int64_t begin, int64_t end) {
          for (int64_t at = begin; at < end; ++at) {
            const int64_t row = at / pieces, first = at % pieces * kPiece;
            const uint64_t row_key =
                util::mix64(choice.key ^ util::mix64(static_cast<uint64_t>(choice.first_row + row / of_row)));
            drop_row(from + row * width, to + row * width, first, std::min(width, first + kPiece),
                     choice.pieces.begins[row % of_row], row_key, limit, scale);
          }
        });
  });
  return y;
}

at::Tensor dropped_on_gpu(const at::Tensor& x, const DropoutDraw& choice) {
  const c10::DeviceGuard guard(x.device());
  at::Tensor y = at::empty_like(x);
  const int64_t rows = x.size(0) * choice.pieces.count;
  cuda::dropout(element_of(x), {.x = x.const_data_ptr(),
                                .y = y.data_ptr(),
                                .rows = rows,
                                .width = x.numel() / std::max<int64_t>(rows, 1),
                                .key = choice.key,
                                .first_row = choice.first_row,
                                .pieces = choice.pieces,
                                .p = choice.p});
  return y;
}

at::Tensor dropped(const at::Tensor& given, const DropoutDraw& choice) {
  if (given.is_meta()) return at::empty_like(given.contiguous());
  if (given.is_cpu()) return dropped_on_cpu(given.contiguous(), choice);
  if (can_fuse(given)) return dropped_on_gpu(given.contiguous(), choice);
  // Other types and devices multiply by the dropout of ones, on the CPU if necessary.
  const auto options = at::TensorOptions().dtype(at::kFloat).device(given.device());
  const at::Tensor ones = at::ones(given.sizes(), options);
  const at::Tensor factors =
      can_fuse(ones) ? dropped_on_gpu(ones, choice) : dropped_on_cpu(ones.cpu(), choice);
  return given * factors.to(given.options());
}

class Dropout final : public torch::autograd::Function<Dropout> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const DropoutDraw& choice) {
    const BelowAutograd below;
    context->saved_data["choice"] = c10::IValue::make_capsule(c10::make_intrusive<Saved>(choice));
    return dropped(x, choice);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const BelowAutograd below;
    const auto capsule = context->saved_data["choice"].toCapsule();
    return {dropped(gradients[0], static_cast<const Saved&>(*capsule).choice), {}};
  }

 private:
  struct Saved : torch::CustomClassHolder {
    explicit Saved(const DropoutDraw& choice) : choice(choice) {}
    DropoutDraw choice;
  };
};

}  // namespace

bool can_fuse(const at::Tensor& x) {
  const bool has_kernels =
      x.is_cpu() || x.is_meta() || (x.is_cuda() && cuda::row_kernels(Element::kFloat) != nullptr);
  const at::ScalarType type = x.scalar_type();
  return has_kernels && (type == at::kFloat || type == at::kBFloat16 || type == at::kHalf);
}

at::Tensor rotary(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) {
  FSDP_CHECK(can_fuse(x) && x.dim() == 4 && x.size(3) % 2 == 0 && cos.scalar_type() == at::kFloat &&
             sin.scalar_type() == at::kFloat && cos.is_contiguous() && sin.is_contiguous() &&
             cos.size(0) >= x.size(1) && cos.size(1) == x.size(3));
  const at::Tensor y = Rotary::apply(x, cos, sin);
  if (is_recomputed(x)) recompute_results<Rotary>(y);
  return y;
}

at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up, bool recomputed) {
  FSDP_CHECK(can_fuse(gate) && up.scalar_type() == gate.scalar_type() && up.sizes() == gate.sizes());
  const at::Tensor y = SwiGlu::apply(gate, up);
  if (recomputed || is_for_cpu(gate)) recompute_results<SwiGlu>(y);
  return y;
}

at::Tensor bias_gelu(const at::Tensor& x, const at::Tensor& bias, bool recomputed) {
  FSDP_CHECK(can_fuse(x) && bias.scalar_type() == x.scalar_type() && bias.dim() == 1 &&
             bias.size(0) == x.size(-1) && bias.is_contiguous());
  const at::Tensor y = BiasGelu::apply(x, seen_parameter(bias, x), Parameters{{bias}});
  if (recomputed || is_for_cpu(x)) recompute_results<BiasGelu>(y);
  return y;
}

at::Tensor embedding(const at::Tensor& weight, const at::Tensor& ids) {
  return Embedding::apply(weight, ids);
}

at::Tensor dropout(const at::Tensor& x, double p, uint64_t key, int64_t first_row, const RowPieces& pieces) {
  FSDP_CHECK(p >= 0 && p < 1 && x.dim() >= 1, "dropout of ", p);
  return Dropout::apply(x, DropoutDraw{.p = p, .key = key, .first_row = first_row, .pieces = pieces});
}

}  // namespace fsdp::kernels
