// kernel_bench [device=cuda|cpu] [architecture=llama|gpt2] [rows=N width=N ...] (device_rates.h): how fast
// the kernels of a step are, in bf16, beside a plain copy: microseconds and bytes a second of each by the
// shapes of a model. The operands go round in more memory than caches hold. Not a test: figures of a machine
// vary, so they are printed and not judged. On the stand-in for CUDA they mean nothing.

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_cudnn_attention_backward.h>
#include <ATen/ops/_cudnn_attention_forward.h>
#include <ATen/ops/_flash_attention_backward.h>
#include <ATen/ops/_flash_attention_forward.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/randn_like.h>
#include <ATen/ops/tensor.h>
#include <torch/version.h>

#include "bench/device_rates.h"
#include "model/kernels/adam.h"
#include "model/kernels/cuda/kernels.h"
#include "model/kernels/fused.h"
#include "model/kernels/reduce.h"
#include "model/kernels/row_kernels.h"

namespace fsdp::bench {
namespace {

using kernels::KernelsFor;

/// Sets of operands, taken in turns.
class Operands {
 public:
  Operands(const BlockSizes& sizes, int64_t tensors, int64_t numel, at::ScalarType type = at::kBFloat16) {
    const auto options = at::TensorOptions().dtype(type).device(sizes.on());
    const auto bytes = static_cast<int64_t>(c10::elementSize(type));
    for (int64_t set = 0; set < turns(tensors * numel * bytes); ++set) {
      sets_.emplace_back();
      // Zeros would draw less power than numbers do.
      for (int64_t i = 0; i < tensors; ++i) sets_.back().push_back(at::randn({numel}, options));
    }
  }
  const std::vector<at::Tensor>& of(int64_t call) const {
    return sets_[static_cast<size_t>(call) % sets_.size()];
  }
  double bytes() const {
    double sum = 0;
    for (const at::Tensor& tensor : sets_.front()) sum += static_cast<double>(tensor.nbytes());
    return sum;
  }

 private:
  std::vector<std::vector<at::Tensor>> sets_;
};

/// Documents of a half, a quarter and two eighths of each row, and as many empty ones: cuDNN's plans are for
/// a number of documents, so that training would fill up to one.
struct Documents {
  at::Tensor bounds;
  int64_t pairs = 0;  ///< of a token and one that it attends to

  static Documents of(const BlockSizes& s) {
    Documents documents;
    std::vector<int> bounds{0};
    for (int64_t row = 0; row < s.rows; row += s.tokens) {
      for (const int64_t length : {s.tokens / 2, s.tokens / 4, s.tokens / 8, s.tokens - s.tokens * 7 / 8}) {
        bounds.push_back(bounds.back() + static_cast<int>(length));
        documents.pairs += length * (length + 1) / 2;
      }
    }
    bounds.resize(2 * bounds.size() - 1, bounds.back());
    documents.bounds = at::tensor(bounds, at::kInt).to(s.on());
    return documents;
  }
};

class KernelBench {
 public:
  explicit KernelBench(const BlockSizes& sizes)
      : s_(sizes),
        rates_(sizes),
        vector_(at::ones({std::max(s_.width, s_.inner)},
                         at::TensorOptions().dtype(at::kBFloat16).device(s_.on()))),
        floats_(at::ones({2, s_.rows}, at::TensorOptions().device(s_.on()))) {}

  void run() {
    Rates::print_head();
    copies();
    norms();
    s_.is_gpt2() ? gelu() : swiglu();
    if (!s_.is_gpt2()) rotary();
    if (s_.is_gpt2() && s_.on().is_cuda()) join();
    loss();
    optimizer();
    if (s_.on().is_cuda()) documents();
    rates_.print_figures();
  }

 private:
  void copies() {
    const Operands x(s_, 2, s_.rows * s_.width);
    rates_.measure("copy", x.bytes(), 0,
                   [&](int64_t call) { at::Tensor(x.of(call)[0]).copy_(x.of(call)[1]); });
    const Operands large(s_, 2, s_.rows * s_.inner * 4);
    rates_.measure("large copy", large.bytes(), 0,
                   [&](int64_t call) { at::Tensor(large.of(call)[0]).copy_(large.of(call)[1]); });
  }

  /// With the residual if it has four operands.
  kernels::NormRows norm_of(const std::vector<at::Tensor>& x) const {
    kernels::NormRows rows{.x = x[0].data_ptr(),
                           .weight = vector_.data_ptr(),
                           .y = x[1].data_ptr(),
                           .mean = mean(),
                           .reciprocal = floats_[1].data_ptr<float>(),
                           .rows = s_.rows,
                           .width = s_.width,
                           .epsilon = 1e-5F};
    if (s_.is_gpt2()) rows.bias = vector_.data_ptr();
    if (x.size() > 2) rows.residual = x[2].data_ptr(), rows.sum = x[3].data_ptr();
    return rows;
  }
  float* mean() const { return s_.is_gpt2() ? floats_[0].data_ptr<float>() : nullptr; }

  void norms() {
    const std::string name = s_.is_gpt2() ? "layer norm" : "rms norm";
    for (const int64_t tensors : {2, 4}) {
      const Operands x(s_, tensors, s_.rows * s_.width);
      rates_.measure(tensors == 4 ? "add and " + name : name, x.bytes(), 0, [&](int64_t call) {
        const KernelsFor kernels(vector_);
        (s_.is_gpt2() ? kernels->layer_norm : kernels->rms_norm)(norm_of(x.of(call)));
      });
    }
    const kernels::RowParts parts(s_.rows, s_.width,
                                  s_.on().is_cpu() ? kernels::RowParts::kCpu : kernels::RowParts::kDevice);
    const at::Tensor sums = at::zeros({2, parts.count(), s_.width}, floats_.options());
    for (const int64_t tensors : {3, 4}) {
      const Operands x(s_, tensors, s_.rows * s_.width);
      rates_.measure(
          concat(tensors == 4 ? "add and " : "", name, " gradient"), x.bytes(), 0, [&](int64_t call) {
            const auto& of = x.of(call);
            kernels::NormGradRows rows{.dy = of[0].data_ptr(),
                                       .x = of[1].data_ptr(),
                                       .weight = vector_.data_ptr(),
                                       .mean = mean(),
                                       .reciprocal = floats_[1].data_ptr<float>(),
                                       .dx = of[2].data_ptr(),
                                       .dweight = sums[0].data_ptr<float>(),
                                       .rows = s_.rows,
                                       .width = s_.width};
            if (s_.is_gpt2()) rows.dbias = sums[1].data_ptr<float>();
            if (tensors == 4) rows.dsum = of[3].data_ptr();
            const KernelsFor kernels(vector_);
            (s_.is_gpt2() ? kernels->layer_norm_backward : kernels->rms_norm_backward)(rows, parts);
          });
    }
    const Operands dy(s_, 1, s_.rows * s_.width);
    const at::Tensor bias = vector_.narrow(0, 0, s_.width);
    rates_.measure("bias gradient", dy.bytes(), 0, [&](int64_t call) {
      kernels::gradient_of_bias(dy.of(call)[0].view({s_.rows, s_.width}), bias);
    });
  }

  void swiglu() {
    const Operands x(s_, 3, s_.rows * s_.inner), gradient(s_, 5, s_.rows * s_.inner);
    rates_.measure("swiglu", x.bytes(), 0, [&](int64_t call) {
      const auto& of = x.of(call);
      KernelsFor(vector_)->swiglu({.gate = of[0].data_ptr(),
                                   .up = of[1].data_ptr(),
                                   .y = of[2].data_ptr(),
                                   .rows = s_.rows,
                                   .width = s_.inner,
                                   .stride = s_.inner});
    });
    rates_.measure("swiglu gradient", gradient.bytes(), 0, [&](int64_t call) {
      const auto& of = gradient.of(call);
      KernelsFor(vector_)->swiglu_backward({.dy = of[0].data_ptr(),
                                            .gate = of[1].data_ptr(),
                                            .up = of[2].data_ptr(),
                                            .dgate = of[3].data_ptr(),
                                            .dup = of[4].data_ptr(),
                                            .rows = s_.rows,
                                            .width = s_.inner,
                                            .stride = s_.inner});
    });
  }

  void gelu() {
    const Operands x(s_, 2, s_.rows * s_.inner), gradient(s_, 3, s_.rows * s_.inner);
    rates_.measure("gelu", x.bytes(), 0, [&](int64_t call) {
      const auto& of = x.of(call);
      KernelsFor(vector_)->bias_gelu({.x = of[0].data_ptr(),
                                      .bias = vector_.data_ptr(),
                                      .y = of[1].data_ptr(),
                                      .rows = s_.rows,
                                      .width = s_.inner});
    });
    const kernels::RowParts parts(s_.rows, s_.inner,
                                  s_.on().is_cpu() ? kernels::RowParts::kCpu : kernels::RowParts::kDevice);
    const at::Tensor sums = at::zeros({parts.count(), s_.inner}, floats_.options());
    rates_.measure("gelu gradient", gradient.bytes(), 0, [&](int64_t call) {
      const auto& of = gradient.of(call);
      KernelsFor(vector_)->bias_gelu_backward({.dy = of[0].data_ptr(),
                                               .x = of[1].data_ptr(),
                                               .bias = vector_.data_ptr(),
                                               .dx = of[2].data_ptr(),
                                               .dbias = sums.data_ptr<float>(),
                                               .rows = s_.rows,
                                               .width = s_.inner},
                                              parts);
    });
  }

  void rotary() {
    const int64_t head = s_.width / s_.heads;
    const at::Tensor angles = at::ones({s_.tokens, head}, floats_.options());
    const Operands x(s_, 1, s_.rows * s_.width);
    rates_.measure("rotary", 2 * x.bytes(), 0, [&](int64_t call) {
      void* values = x.of(call)[0].data_ptr();
      KernelsFor(vector_)->rotary({.x = values,
                                   .y = values,
                                   .cos = angles.data_ptr<float>(),
                                   .sin = angles.data_ptr<float>(),
                                   .rows = s_.rows,
                                   .tokens = s_.tokens,
                                   .heads = s_.heads,
                                   .head_dim = head,
                                   .stride = s_.width});
    });
  }

  void join() {
    const int64_t head = s_.width / s_.heads, of_one = s_.rows * s_.width;
    const Operands x(s_, 2, 3 * of_one);
    const kernels::RowParts parts(s_.rows, 3 * s_.width, kernels::RowParts::kDevice);
    const at::Tensor sums = at::empty({parts.count(), parts.width()}, floats_.options());
    rates_.measure("dqkv joined and summed", x.bytes(), 0, [&](int64_t call) {
      const auto heads_of = [&](int64_t number) -> kernels::cuda::JoinedGradients::Heads {
        return {x.of(call)[0].data_ptr<c10::BFloat16>() + number * of_one, s_.heads, s_.tokens * s_.width,
                s_.width, head};
      };
      kernels::cuda::join_rows(kernels::Element::kBFloat16,
                               {.queries = heads_of(0),
                                .keys = heads_of(1),
                                .values = heads_of(2),
                                .y = x.of(call)[1].data_ptr(),
                                .sequences = s_.rows / s_.tokens,
                                .tokens = s_.tokens,
                                .head_dim = head},
                               sums.data_ptr<float>(), parts);
    });
  }

  void loss() {
    const int64_t stride = (s_.vocabulary + 63) / 64 * 64,
                  rows = std::min<int64_t>(s_.rows, (512 << 20) / 2 / stride);
    const Operands logits(s_, 1, rows * stride);
    const at::Tensor targets = at::arange(rows, floats_.options().dtype(at::kLong)).remainder_(s_.vocabulary),
                     losses = at::empty({rows}, floats_.options().dtype(at::kDouble)),
                     counted = at::ones_like(losses[0]);
    // Each row is read twice, the second time from the cache, and written once.
    rates_.measure("loss and its gradient", 2 * logits.bytes(), 0, [&](int64_t call) {
      KernelsFor(vector_)->losses({.logits = logits.of(call)[0].data_ptr(),
                                   .stride = stride,
                                   .targets = targets.data_ptr<int64_t>(),
                                   .losses = losses.data_ptr<double>(),
                                   .counted = counted.data_ptr<double>(),
                                   .rows = rows,
                                   .vocabulary = s_.vocabulary,
                                   .differentiates = true});
    });
  }

  void optimizer() {
    const int64_t parameters =
        2 * s_.width * (s_.width + s_.key_width) + 3 * s_.width * s_.inner;  // of a block
    const Operands x(s_, 4, parameters, at::kFloat);
    rates_.measure("squares", x.bytes() / 4, 0,
                   [&](int64_t call) { kernels::sums_of_squares_on_device({x.of(call)[0]}); });
    rates_.measure("cast to bf16", x.bytes() / 4 * 1.5, 0,
                   [&](int64_t call) { x.of(call)[0].to(at::kBFloat16); });
    const kernels::AdamNumbers numbers{
        .beta1 = 0.9F, .one_minus_beta1 = 0.1F, .beta2 = 0.95F, .one_minus_beta2 = 0.05F, .eps = 1e-8F};
    rates_.measure("adamw", x.bytes() / 4 * 7, 0, [&](int64_t call) {
      const auto& of = x.of(call);
      kernels::step_adam({{.value = of[0],
                           .gradient = of[1],
                           .exp_avg = of[2],
                           .exp_avg_sq = of[3],
                           .rates = {.step_size = 1e-6F, .second_correction = 1}}},
                         numbers);
    });
    // The averages are the halves of one tensor.
    const kernels::RoundedElements places{.columns = parameters, .part = {0, parameters}};
    rates_.measure("adamw, bf16 moments", x.bytes() / 4 * 5, 0, [&](int64_t call) {
      const auto& of = x.of(call);
      const at::Tensor averages = of[2].view(at::kBFloat16);
      kernels::step_adam({{.value = of[0],
                           .gradient = of[1],
                           .exp_avg = averages.narrow(0, 0, parameters),
                           .exp_avg_sq = averages.narrow(0, parameters, parameters),
                           .rates = {.step_size = 1e-6F, .second_correction = 1},
                           .rounded = {places, places}}},
                         numbers);
    });
  }

  /// Attention of documents by FlashAttention-2, as in training, and by cuDNN, which must agree.
  void documents() {
    const int64_t head = s_.width / s_.heads, kv_heads = s_.key_width / head;
    const Documents rows = Documents::of(s_);
    const auto options = vector_.options();
    const at::Tensor q = at::randn({s_.rows, s_.heads, head}, options),
                     k = at::randn({s_.rows, kv_heads, head}, options), v = at::randn_like(k),
                     dy = at::randn_like(q), none = at::empty({0}, options.dtype(at::kLong));
    const double bytes = static_cast<double>(2 * q.nbytes() + 2 * k.nbytes()),
                 flops = 2.0 * static_cast<double>(rows.pairs * s_.heads * head);
    const auto& b = rows.bounds;
    const auto flash = [&] {
      return at::_flash_attention_forward(q, k, v, b, b, s_.tokens, s_.tokens, 0, /*is_causal=*/true, false);
    };
    const auto flash_back = [&](const at::Tensor& y, const at::Tensor& sums) {
      return at::_flash_attention_backward(dy, q, k, v, y, sums, b, b, s_.tokens, s_.tokens, 0, true, none,
                                           none);
    };
    const auto [y, sums] = std::tuple(std::get<0>(flash()), std::get<1>(flash()));
    rates_.measure("documents by flash", bytes, 2 * flops, [&](int64_t) { flash(); });
    rates_.measure("documents by flash gradient", 2 * bytes, 5 * flops,
                   [&](int64_t) { flash_back(y, sums); });
    // Older versions build a plan in each call, and write beyond their memory in backward (docs/gpus.md).
    if constexpr (TORCH_VERSION_MINOR < 15) return;
    const auto cudnn = [&] {
      return at::_cudnn_attention_forward(q, k, v, std::nullopt, b, b, s_.tokens, s_.tokens, true, 0, true,
                                          false);
    };
    const auto cudnn_back = [&](const at::Tensor& of, const at::Tensor& log_sums) {
      return at::_cudnn_attention_backward(dy, q, k, v, of, log_sums, none, none, {}, b, b, s_.tokens,
                                           s_.tokens, 0, true);
    };
    const auto [y2, sums2] = std::tuple(std::get<0>(cudnn()), std::get<1>(cudnn()));
    rates_.measure("documents by cuDNN", bytes, 2 * flops, [&](int64_t) { cudnn(); });
    rates_.measure("documents by cuDNN gradient", 2 * bytes, 5 * flops,
                   [&](int64_t) { cudnn_back(y2, sums2); });
    const auto [dq, dk, dv] = flash_back(y, sums);
    const auto [dq2, dk2, dv2] = cudnn_back(y2, sums2);
    double apart = 0;
    for (const auto& [one, other] : {std::pair(y, y2), {dq, dq2}, {dk, dk2}, {dv, dv2}}) {
      const at::Tensor of = one.to(at::kFloat), difference = of - other.to(at::kFloat);
      apart = std::max(apart, (difference.norm() / of.norm()).item<double>());
    }
    std::printf("documents by flash and cuDNN differ by %.3g\n", apart);
    rates_.add_figure("documents_apart", apart);
  }

  const BlockSizes s_;
  Rates rates_;
  at::Tensor vector_;  ///< ones of the kernels' type: weights and biases
  at::Tensor floats_;  ///< [2, rows]: means and reciprocals
};

}  // namespace
}  // namespace fsdp::bench

int main(int count, char** words) {
  using namespace fsdp::bench;
  const at::NoGradGuard no_grad;
  return run_bench("kernel_bench", [&] { KernelBench(BlockSizes::read(count, words)).run(); });
}
