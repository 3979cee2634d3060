#include "kernels/fused.h"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "kernels/cpu/loops.h"
#include "util/error.h"

namespace fsdp::kernels {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::Variable;
using torch::autograd::variable_list;

/// Elements that one thread takes at least.
constexpr int64_t kGrain = 1 << 15;

const cpu::Loops& loops_of(const at::Tensor& x) {
  return cpu::loops(x.scalar_type() == at::kFloat ? cpu::Element::kFloat : cpu::Element::kBFloat16);
}

char* row_of(const at::Tensor& tensor, int64_t row, int64_t width) {
  return static_cast<char*>(tensor.data_ptr()) + row * width * static_cast<int64_t>(tensor.element_size());
}

/// body(first row, rows) on several threads.
template <typename Body>
void for_rows(int64_t rows, int64_t width, const Body& body) {
  at::parallel_for(0, rows, std::max<int64_t>(1, kGrain / std::max<int64_t>(width, 1)),
                   [&](int64_t begin, int64_t end) { body(begin, end - begin); });
}

at::Tensor reciprocals_for(const at::Tensor& x) {
  return at::empty({x.numel() / x.size(-1)}, x.options().dtype(at::kFloat));
}

void norm_rows(const at::Tensor& x, const at::Tensor& residual, const at::Tensor& sum,
               const at::Tensor& weight, const at::Tensor& y, const at::Tensor& reciprocal, double epsilon) {
  const int64_t width = x.size(-1);
  const bool adds = residual.defined();
  for_rows(reciprocal.numel(), width, [&](int64_t first, int64_t rows) {
    loops_of(x).rms_norm({.x = row_of(x, first, width),
                          .residual = adds ? row_of(residual, first, width) : nullptr,
                          .sum = adds ? row_of(sum, first, width) : nullptr,
                          .weight = weight.data_ptr(),
                          .y = row_of(y, first, width),
                          .reciprocal = reciprocal.data_ptr<float>() + first,
                          .rows = rows,
                          .width = width,
                          .epsilon = static_cast<float>(epsilon)});
  });
}

/// {gradient of x, gradient of the weight}; `dsum` may be undefined.
std::pair<at::Tensor, at::Tensor> norm_backward(const at::Tensor& dy, const at::Tensor& dsum,
                                                const at::Tensor& x, const at::Tensor& weight,
                                                const at::Tensor& reciprocal) {
  const int64_t width = x.size(-1), rows = reciprocal.numel();
  at::Tensor dx = at::empty_like(x);
  const int64_t most = std::max<int64_t>(1, rows * width / kGrain);
  const int64_t parts = std::min<int64_t>(at::get_num_threads(), most), each = (rows + parts - 1) / parts;
  at::Tensor dweight = at::zeros({parts, width}, x.options().dtype(at::kFloat));
  at::parallel_for(0, parts, 1, [&](int64_t begin, int64_t end) {
    for (int64_t part = begin; part < end; ++part) {
      const int64_t first = part * each;
      loops_of(x).rms_norm_backward({.dy = row_of(dy, first, width),
                                     .x = row_of(x, first, width),
                                     .weight = weight.data_ptr(),
                                     .reciprocal = reciprocal.data_ptr<float>() + first,
                                     .dsum = dsum.defined() ? row_of(dsum, first, width) : nullptr,
                                     .dx = row_of(dx, first, width),
                                     .dweight = dweight.data_ptr<float>() + part * width,
                                     .rows = std::min(each, rows - first),
                                     .width = width});
    }
  });
  dweight = parts == 1 ? dweight.view({width}) : dweight.sum(0);
  return {dx, dweight.to(weight.scalar_type())};
}

class RmsNorm final : public Function<RmsNorm> {
 public:
  static Variable forward(AutogradContext* context, const Variable& given, const Variable& weight,
                          double epsilon) {
    const at::Tensor x = given.contiguous();
    at::Tensor y = at::empty_like(x), reciprocal = reciprocals_for(x);
    norm_rows(x, {}, {}, weight, y, reciprocal, epsilon);
    context->save_for_backward({x, weight, reciprocal});
    return y;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const variable_list saved = context->get_saved_variables();
    auto [dx, dweight] = norm_backward(gradients[0].contiguous(), {}, saved[0], saved[1], saved[2]);
    return {dx, dweight, {}};
  }
};

class AddRmsNorm final : public Function<AddRmsNorm> {
 public:
  static variable_list forward(AutogradContext* context, const Variable& given, const Variable& residual,
                               const Variable& weight, double epsilon) {
    const at::Tensor x = given.contiguous();
    at::Tensor sum = at::empty_like(x), y = at::empty_like(x), reciprocal = reciprocals_for(x);
    norm_rows(x, residual.contiguous(), sum, weight, y, reciprocal, epsilon);
    context->save_for_backward({sum, weight, reciprocal});
    return {sum, y};
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const variable_list saved = context->get_saved_variables();
    if (!gradients[1].defined()) return {gradients[0], gradients[0], {}, {}};
    const at::Tensor dsum = gradients[0].defined() ? gradients[0].contiguous() : at::Tensor();
    auto [dx, dweight] = norm_backward(gradients[1].contiguous(), dsum, saved[0], saved[1], saved[2]);
    return {dx, dx, dweight, {}};
  }
};

at::Tensor rotated(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin, bool back) {
  at::Tensor y = at::empty(x.sizes(), x.options());
  const int64_t width = x.size(2) * x.size(3);
  for_rows(x.size(0) * x.size(1), width, [&](int64_t first, int64_t rows) {
    loops_of(x).rotary({.x = row_of(x, first, width),
                        .y = row_of(y, first, width),
                        .cos = cos.data_ptr<float>(),
                        .sin = sin.data_ptr<float>(),
                        .first = first,
                        .rows = rows,
                        .tokens = x.size(1),
                        .heads = x.size(2),
                        .head_dim = x.size(3),
                        .back = back});
  });
  return y;
}

class Rotary final : public Function<Rotary> {
 public:
  static Variable forward(AutogradContext* context, const Variable& x, const Variable& cos,
                          const Variable& sin) {
    context->save_for_backward({cos, sin});
    return rotated(x.contiguous(), cos, sin, false);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const variable_list saved = context->get_saved_variables();
    return {rotated(gradients[0].contiguous(), saved[0], saved[1], true), {}, {}};
  }
};

class SwiGlu final : public Function<SwiGlu> {
 public:
  static Variable forward(AutogradContext* context, const Variable& gate, const Variable& up) {
    const at::Tensor g = gate.contiguous(), u = up.contiguous();
    context->save_for_backward({g, u});
    at::Tensor y = at::empty_like(g);
    for_rows(g.numel(), 1, [&](int64_t first, int64_t count) {
      loops_of(g).swiglu(row_of(g, first, 1), row_of(u, first, 1), row_of(y, first, 1), count);
    });
    return y;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &g = saved[0], &u = saved[1];
    const at::Tensor dy = gradients[0].contiguous();
    at::Tensor dg = at::empty_like(g), du = at::empty_like(u);
    for_rows(g.numel(), 1, [&](int64_t first, int64_t count) {
      loops_of(g).swiglu_backward(row_of(dy, first, 1), row_of(g, first, 1), row_of(u, first, 1),
                                  row_of(dg, first, 1), row_of(du, first, 1), count);
    });
    return {dg, du};
  }
};

/// Elements of logits that exist at a time, about: 64 MiB of fp32.
constexpr int64_t kChunkElements = 16 << 20;

/// The sum of the losses of the rows; logits become `scale` times their gradient where it is not 0.
double losses(const at::Tensor& logits, const at::Tensor& targets, double scale) {
  const int64_t rows = logits.size(0), vocabulary = logits.size(1);
  at::Tensor parts = at::zeros({rows}, at::kDouble);
  const int64_t grain = std::max<int64_t>(1, kGrain / vocabulary);
  at::parallel_for(0, rows, grain, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      if (targets.data_ptr<int64_t>()[row] == kIgnored) {
        if (scale != 0) logits[row].zero_();
        continue;
      }
      parts.data_ptr<double>()[row] =
          loops_of(logits).cross_entropy({.logits = row_of(logits, row, vocabulary),
                                          .targets = targets.data_ptr<int64_t>() + row,
                                          .rows = 1,
                                          .vocabulary = vocabulary,
                                          .scale = static_cast<float>(scale)});
    }
  });
  double sum = 0;
  for (int64_t row = 0; row < rows; ++row) sum += parts.data_ptr<double>()[row];
  return sum;
}

class LinearCrossEntropy final : public Function<LinearCrossEntropy> {
 public:
  static Variable forward(AutogradContext* context, const Variable& given, const Variable& weight,
                          const Variable& targets, int64_t matmul_number, bool differentiates) {
    const auto matmul = static_cast<Matmul>(matmul_number);
    const at::Tensor x = given.contiguous();
    const int64_t rows = x.size(0), chunk = cross_entropy_chunk_rows(rows, weight.size(0));
    at::Tensor dx = differentiates ? at::empty_like(x) : at::Tensor(), dweight;
    const int64_t* target = targets.data_ptr<int64_t>();
    const auto counted = static_cast<double>(rows - std::count(target, target + rows, kIgnored));
    double loss = 0;
    for (int64_t first = 0; first < rows; first += chunk) {
      const int64_t count = std::min(chunk, rows - first);
      const at::Tensor part = x.narrow(0, first, count);
      const at::Tensor logits = product(part, weight, matmul);
      loss += losses(logits, targets.narrow(0, first, count), differentiates ? 1 / counted : 0);
      if (!differentiates) continue;
      dx.narrow(0, first, count).copy_(product(logits, weight.t(), matmul));
      const at::Tensor of_weight = product(logits.t(), part.t(), matmul);
      if (dweight.defined()) {
        dweight.add_(of_weight);
      } else {
        dweight = chunk < rows ? of_weight.to(at::kFloat) : of_weight;
      }
    }
    if (differentiates) {
      context->saved_data["dx"] = dx;
      context->saved_data["dweight"] = dweight.to(weight.scalar_type());
    }
    return at::scalar_tensor(loss / counted, x.options().dtype(at::kFloat));
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    at::Tensor dx = context->saved_data["dx"].toTensor(), dweight = context->saved_data["dweight"].toTensor();
    context->saved_data.clear();  // the memory may go as soon as autograd has used it
    const double scale = gradients[0].item<double>();
    if (scale != 1) {
      dx.mul_(scale);
      dweight.mul_(scale);
    }
    return {dx, dweight, {}, {}, {}};
  }
};

}  // namespace

bool can_fuse(const at::Tensor& x) {
  return x.is_cpu() && (x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16);
}

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double epsilon) {
  FSDP_CHECK(can_fuse(x) && weight.scalar_type() == x.scalar_type() && weight.size(0) == x.size(-1));
  return RmsNorm::apply(x, weight, epsilon);
}

std::pair<at::Tensor, at::Tensor> add_rms_norm(const at::Tensor& x, const at::Tensor& residual,
                                               const at::Tensor& weight, double epsilon) {
  FSDP_CHECK(can_fuse(x) && weight.scalar_type() == x.scalar_type() && weight.size(0) == x.size(-1) &&
             residual.scalar_type() == x.scalar_type() && residual.sizes() == x.sizes());
  variable_list outputs = AddRmsNorm::apply(x, residual, weight, epsilon);
  return {outputs[0], outputs[1]};
}

at::Tensor rotary(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) {
  FSDP_CHECK(can_fuse(x) && x.dim() == 4 && x.size(3) % 2 == 0 && cos.scalar_type() == at::kFloat &&
             sin.scalar_type() == at::kFloat && cos.is_contiguous() && sin.is_contiguous() &&
             cos.size(0) >= x.size(1) && cos.size(1) == x.size(3));
  return Rotary::apply(x, cos, sin);
}

at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up) {
  FSDP_CHECK(can_fuse(gate) && up.scalar_type() == gate.scalar_type() && up.sizes() == gate.sizes());
  return SwiGlu::apply(gate, up);
}

at::Tensor linear_cross_entropy(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& targets,
                                Matmul matmul) {
  FSDP_CHECK(can_fuse(x) && weight.scalar_type() == x.scalar_type() && x.dim() == 2 &&
             weight.size(1) == x.size(1) && targets.numel() == x.size(0));
  const at::Tensor tokens = targets.contiguous();
  const int64_t* target = tokens.data_ptr<int64_t>();
  const auto outside = std::find_if(target, target + targets.numel(), [&](int64_t token) {
    return token != kIgnored && (token < 0 || token >= weight.size(0));
  });
  if (outside != target + targets.numel()) {
    util::fail(util::ErrorKind::kUsage, "target tokens: expected numbers below ", weight.size(0),
               ", the size of the vocabulary; found ", *outside);
  }
  const bool differentiates = at::GradMode::is_enabled() && (x.requires_grad() || weight.requires_grad());
  return LinearCrossEntropy::apply(x, weight, tokens, static_cast<int64_t>(matmul), differentiates);
}

int64_t cross_entropy_chunk_rows(int64_t rows, int64_t vocabulary) {
  return std::clamp<int64_t>(kChunkElements / vocabulary, 1, std::max<int64_t>(rows, 1));
}

}  // namespace fsdp::kernels
