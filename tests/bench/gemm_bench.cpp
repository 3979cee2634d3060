// gemm_bench [device=cuda|cpu] [architecture=llama|gpt2] [rows=N width=N ...] (device_rates.h): how fast the
// products of a step are in bf16, those of forward, of the inputs' gradients and of the weights', which are
// fp32, with the calls that training makes. The best and that of a large square are the ceilings of
// tests/bench/ledger.py. On a GPU, products with what follows them or goes beside them are measured too. With
// trials=1 all are computed as training.product_trials chooses. Not a test: figures of a machine vary, so
// they are printed and not judged. On the stand-in for CUDA they mean nothing.

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/randn.h>

#include <memory>

#include "bench/device_rates.h"
#include "model/kernels/factor_products.h"
#include "model/kernels/matmul.h"
#include "model/kernels/product_choices.h"
#include "model/kernels/product_epilogues.h"
#include "model/kernels/reduce.h"

namespace fsdp::bench {
namespace {

struct Layer {
  std::string name;
  int64_t outputs, inputs;
};

class GemmBench {
 public:
  explicit GemmBench(const BlockSizes& sizes) : s_(sizes), rates_(sizes) {}

  void run() {
    Rates::print_head();
    const int64_t square = std::min<int64_t>(8192, s_.rows);
    measure("square", square, square, square);
    for (const Layer& layer : layers()) {
      measure(layer.name, s_.rows, layer.outputs, layer.inputs);
      measure(layer.name + " dx", s_.rows, layer.inputs, layer.outputs);
      measure_weight_gradient(layer.name + " dW", layer.outputs, layer.inputs, s_.rows);
      if (layer.name != "head") block_ += three_;
    }
    if (s_.on().is_cuda()) measure_epilogues();
    rates_.add_figure("block_products_us", 1e6 * block_);
    rates_.add_figure("best_tflops", best_);
    rates_.print_figures();
  }

 private:
  std::vector<Layer> layers() const {
    const int64_t regular = std::max<int64_t>(s_.vocabulary / 64 * 64, 64);  // as the head has it
    std::vector<Layer> layers = {{"qkv", s_.width + 2 * s_.key_width, s_.width}, {"o", s_.width, s_.width}};
    layers.push_back(s_.is_gpt2() ? Layer{"up", s_.inner, s_.width}
                                  : Layer{"gate and up", 2 * s_.inner, s_.width});
    layers.insert(layers.end(), {{"down", s_.width, s_.inner}, {"head", regular, s_.width}});
    return layers;
  }

  at::Tensor matrix(int64_t rows, int64_t columns) const {
    return at::randn({rows, columns}, at::TensorOptions().dtype(at::kBFloat16).device(s_.on()));
  }

  /// `calls` of three kinds are a layer.
  void note(double seconds, double flops, bool is_first) {
    best_ = std::max(best_, flops / seconds * 1e-12);
    three_ = is_first ? seconds : three_ + seconds;
  }

  static double flops_of(int64_t rows, int64_t columns, int64_t depth) {
    return 2.0 * static_cast<double>(rows) * static_cast<double>(columns) * static_cast<double>(depth);
  }

  void measure(const std::string& name, int64_t rows, int64_t columns, int64_t depth) {
    const at::Tensor a = matrix(rows, depth), b = matrix(columns, depth),
                     to = at::empty({rows, columns}, a.options());
    const double flops = flops_of(rows, columns, depth),
                 bytes = static_cast<double>(a.nbytes() + b.nbytes() + to.nbytes());
    const double seconds = measured(
        name, bytes, flops, [&](int64_t) { kernels::product_into(to, a, b, kernels::Matmul::kOneDnn); });
    note(seconds, flops, name.find(" dx") == std::string::npos);
  }

  /// dW = dy^T x, in fp32 as the units' buffers of gradients are
  void measure_weight_gradient(const std::string& name, int64_t rows, int64_t columns, int64_t depth) {
    const at::Tensor a = matrix(depth, rows), b = matrix(depth, columns);
    const at::Tensor to = at::empty({rows, columns}, a.options().dtype(at::kFloat));
    const double flops = flops_of(rows, columns, depth),
                 bytes = static_cast<double>(a.nbytes() + b.nbytes() + to.nbytes());
    const double seconds = measured(name, bytes, flops, [&](int64_t) {
      kernels::product_into(to, a.t(), b.t(), kernels::Matmul::kOneDnn);
    });
    note(seconds, flops, false);
  }

  /// Measures the work; with trials, as they have chosen for it.
  double measured(const std::string& name, double bytes, double flops,
                  const std::function<void(int64_t)>& work) {
    std::shared_ptr<kernels::ProductChoices> choices;
    if (s_.trials > 0 && s_.on().is_cuda()) {
      choices = std::make_shared<kernels::ProductChoices>(kernels::ProductChoices::Options{.seconds = 60});
    }
    if (choices) {
      kernels::set_product_choices(on_gpu(), choices);
      work(0);
      choices->settle(choices->all());
    }
    const double seconds = rates_.measure(name, bytes, flops, work);
    if (choices) kernels::set_product_choices(on_gpu(), nullptr);
    return seconds;
  }
  at::Device on_gpu() const { return {at::kCUDA, 0}; }

  /// A product with what follows it or goes beside it, by one kernel if trials have chosen so.
  void measure_together(const std::string& name, const kernels::cuda::GpuProduct& product,
                        const std::function<void()>& otherwise) {
    const double flops = flops_of(product.c.size(0), product.c.size(1), product.a.size(1));
    const double bytes = static_cast<double>(product.a.nbytes() + product.b.nbytes() + product.c.nbytes());
    epilogues_ += measured(name, bytes, flops, [&](int64_t) {
      if (!kernels::multiply_if_chosen(product, otherwise)) otherwise();
    });
  }

  void measure_epilogues() {
    const auto layer = [&](const std::string& name, int64_t inputs) {
      const at::Tensor a = matrix(s_.rows, inputs), b = matrix(inputs, s_.width),
                       x = matrix(s_.rows, s_.width);
      at::Tensor c = at::empty_like(x);
      measure_together(name + " and residual", {.c = c, .a = a, .b = b, .added = x}, [&] {
        kernels::multiply_on_gpu(c, a, b, /*adds=*/false);
        c.add_(x);
      });
      if (!s_.is_gpt2()) return;
      const at::Tensor bias = matrix(1, s_.width)[0],
                       sums = at::empty({s_.width}, c.options().dtype(at::kFloat)),
                       to = at::empty({inputs, s_.width}, sums.options());
      const at::Tensor back = a.t();
      measure_together(
          name + " dW and bias",
          {.c = to, .a = back, .b = x, .epilogue = kernels::cuda::Epilogue::kColumnSums, .beside = sums},
          [&] {
            kernels::multiply_on_gpu(to, back, x, /*adds=*/false);
            kernels::gradient_of_bias(x, bias);
          });
    };
    layer("o", s_.width);
    layer("down", s_.inner);
    if (s_.is_gpt2()) measure_gelu();
    rates_.add_figure("epilogues_us", 1e6 * epilogues_);
  }

  void measure_gelu() {
    const at::Tensor x = matrix(s_.rows, s_.width), up = matrix(s_.width, s_.inner),
                     bias = matrix(1, s_.inner)[0], inner = matrix(s_.rows, s_.inner),
                     y = at::empty_like(inner), dy = matrix(s_.rows, s_.width),
                     back = matrix(s_.width, s_.inner);
    measure_together(
        "up and gelu",
        {.c = y, .a = x, .b = up, .bias = bias, .epilogue = kernels::cuda::Epilogue::kGelu, .beside = inner},
        [&] {
          kernels::multiply_on_gpu(inner, x, up, /*adds=*/false);
          kernels::KernelsFor(inner)->bias_gelu({.x = inner.data_ptr(),
                                                 .bias = bias.data_ptr(),
                                                 .y = y.data_ptr(),
                                                 .rows = s_.rows,
                                                 .width = s_.inner});
        });
    measure_together(
        "down dx and gelu",
        {.c = y, .a = dy, .b = back, .epilogue = kernels::cuda::Epilogue::kGeluGradient, .beside = inner},
        [&] {
          kernels::multiply_on_gpu(y, dy, back, /*adds=*/false);
          const kernels::ParameterSums sums(inner, 1);
          kernels::KernelsFor(inner)->bias_gelu_backward({.dy = y.data_ptr(),
                                                          .x = inner.data_ptr(),
                                                          .bias = bias.data_ptr(),
                                                          .dx = y.data_ptr(),
                                                          .dbias = sums.of(0),
                                                          .rows = s_.rows,
                                                          .width = s_.inner},
                                                         sums.parts());
        });
  }

  const BlockSizes s_;
  Rates rates_;
  double best_ = 0, three_ = 0, block_ = 0, epilogues_ = 0;
};

}  // namespace
}  // namespace fsdp::bench

int main(int count, char** words) {
  using namespace fsdp::bench;
  const at::NoGradGuard no_grad;
  return run_bench("gemm_bench", [&] { GemmBench(BlockSizes::read(count, words)).run(); });
}
