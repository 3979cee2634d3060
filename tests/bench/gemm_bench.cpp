// gemm_bench [device=cuda|cpu] [architecture=llama|gpt2] [rows=N width=N ...] (device_rates.h): how fast the
// products of a step are in bf16, those of forward, of the inputs' gradients and of the weights', which are
// fp32, with the calls that training makes. The best and that of a large square are the ceilings of
// tests/bench/ledger.py. Not a test: figures of a machine vary, so they are printed and not judged. On the
// stand-in for CUDA they mean nothing.

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/randn.h>

#include "bench/device_rates.h"
#include "model/kernels/matmul.h"

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
    const double seconds = rates_.measure(
        name, bytes, flops, [&](int64_t) { kernels::product_into(to, a, b, kernels::Matmul::kOneDnn); });
    note(seconds, flops, name.find(" dx") == std::string::npos);
  }

  /// dW = dy^T x, in fp32 as the units' buffers of gradients are
  void measure_weight_gradient(const std::string& name, int64_t rows, int64_t columns, int64_t depth) {
    const at::Tensor a = matrix(depth, rows), b = matrix(depth, columns);
    const at::Tensor to = at::empty({rows, columns}, a.options().dtype(at::kFloat));
    const double flops = flops_of(rows, columns, depth),
                 bytes = static_cast<double>(a.nbytes() + b.nbytes() + to.nbytes());
    const double seconds = rates_.measure(name, bytes, flops, [&](int64_t) {
      kernels::product_into(to, a.t(), b.t(), kernels::Matmul::kOneDnn);
    });
    note(seconds, flops, false);
  }

  const BlockSizes s_;
  Rates rates_;
  double best_ = 0, three_ = 0, block_ = 0;
};

}  // namespace
}  // namespace fsdp::bench

int main(int count, char** words) {
  using namespace fsdp::bench;
  const at::NoGradGuard no_grad;
  return run_bench("gemm_bench", [&] { GemmBench(BlockSizes::read(count, words)).run(); });
}
