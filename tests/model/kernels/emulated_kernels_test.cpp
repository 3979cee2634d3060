// The kernels of activations, rotary embedding and sums for GPUs, emulated, against double precision and
// against those of the CPU. Norms, losses and embeddings have files of their own.

#include "support/emulated_kernels.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include <vector>

#include "model/kernels/cuda/activations.cuh"
#include "model/kernels/cuda/block_sum.cuh"
#include "model/kernels/cuda/elements.cuh"
#include "model/kernels/cuda/rotary.cuh"
#include "model/kernels/row_kernels.h"

namespace fsdp::kernels::cuda {
namespace {

class CudaKernels : public OfType {};
INSTANTIATE_TEST_SUITE_P(Types, CudaKernels, ::testing::Values(at::kFloat, at::kBFloat16, at::kHalf),
                         name_of_type);

TEST_P(CudaKernels, SwiGluIsThatOfTheFormulaAndOfTheCpu) {
  struct Size {
    int64_t rows, width;
  };
  for (int64_t shift : {0, 1}) {
    for (const auto& [rows, width] :
         std::vector<Size>{{0, 8}, {3, 0}, {1, 1}, {5, 7}, {1, 8}, {70, 16}, {33, 264}, {3, 1001}}) {
      SCOPED_TRACE(width);
      const std::vector<int64_t> shape{rows, width};
      const Buffer gate(random(shape) * 4, shift), up(random(shape), shift), dy(random(shape), shift);
      Buffer y(shape, type(), shift), dgate(shape, type(), shift), dup(shape, type(), shift);
      Buffer again(shape, type(), shift);
      auto values = [&, rows = rows, width = width](const Buffer& to) {
        return SwiGluRows{.gate = gate.data(),
                          .up = up.data(),
                          .y = to.data(),
                          .rows = rows,
                          .width = width,
                          .stride = width};
      };
      auto gradients = [&, rows = rows, width = width](const Buffer& of_gate, const Buffer& of_up,
                                                       const Buffer& result) {
        return SwiGluGradRows{.dy = dy.data(),
                              .gate = gate.data(),
                              .up = up.data(),
                              .dgate = of_gate.data(),
                              .dup = of_up.data(),
                              .y = result.data(),
                              .rows = rows,
                              .width = width,
                              .stride = width};
      };
      with_type([&]<typename T>(T) {
        run_under_all_schedules({&y, &dgate, &dup, &again}, [&](const EmulatedLaunch& launch) {
          swiglu<T>(launch, values(y));
          swiglu_backward<T>(launch, gradients(dgate, dup, again));
        });
      });
      at::Tensor G = gate.in_double().requires_grad_(), U = up.in_double().requires_grad_();
      const at::Tensor expected = at::silu(G) * U;
      expected.backward(dy.in_double());
      expect_near(y.values(), expected.detach(), "y");
      expect_near(dgate.values(), G.grad(), "dgate");
      expect_near(dup.values(), U.grad(), "dup");
      EXPECT_TRUE(again.values().equal(y.values())) << "y, made with the gradients";

      Buffer cpu_y(shape, type()), cpu_dgate(shape, type()), cpu_dup(shape, type()), cpu_again(shape, type());
      cpu_row_kernels(element()).swiglu(values(cpu_y));
      cpu_row_kernels(element()).swiglu_backward(gradients(cpu_dgate, cpu_dup, cpu_again));
      EXPECT_TRUE(cpu_again.values().equal(cpu_y.values())) << "y of the CPU, made with the gradients";
      expect_near(y.values(), cpu_y.values(), "y of the CPU");
      expect_near(dgate.values(), cpu_dgate.values(), "dgate of the CPU");
      expect_near(dup.values(), cpu_dup.values(), "dup of the CPU");
    }
  }
}

TEST(CudaSigmoid, IsExactToItsBounds) {
  const at::Tensor x = at::cat({at::linspace(-86, 86, 40'001), at::linspace(-2, 2, 40'001)}).to(at::kFloat);
  const at::Tensor expected = x.to(at::kDouble).sigmoid();
  for (int64_t i = 0; i < x.numel(); ++i) {
    const float value = x[i].item<float>();
    const double right = expected[i].item<double>(), off = std::fabs(sigmoid(value) - right);
    EXPECT_LE(off, std::ldexp(1, -22)) << value;
    EXPECT_LE(off, std::ldexp(value < 0 ? 4.0 - value : 1.0, -22) * right) << value;
  }
  EXPECT_EQ(sigmoid(-INFINITY), 0);
  EXPECT_EQ(sigmoid(-1e30F), 0);
  EXPECT_EQ(sigmoid(INFINITY), 1);
  EXPECT_TRUE(std::isnan(sigmoid(NAN)));
}

/// Largest difference as a share of the larger of 1 and the expected value.
double largest_error(const at::Tensor& found, const at::Tensor& expected) {
  return ((found.to(at::kDouble) - expected).abs() / expected.abs().clamp_min(1)).max().item<double>();
}

TEST_P(CudaKernels, ActivationsAndTheirGradientsAreExactToTheType) {
  // Half a unit in the last place, from rounding; in fp32, what its products lose, most where 1 - s is small.
  const double bound = type() == at::kFloat ? 6e-7 : type() == at::kHalf ? 4.9e-4 : 3.92e-3;
  const double bound_of_gradients = type() == at::kFloat ? 2.5e-6 : bound;
  constexpr int64_t kCount = 8192;
  const at::Tensor range = at::linspace(-20, 20, kCount).to(type()), ones = at::ones({kCount}, type());
  const Buffer x(range), one(ones), none(at::zeros({kCount}, type()));
  Buffer y({kCount}, type()), dx({kCount}, type()), other({kCount}, type()), sums({1, kCount}, at::kFloat);
  const EmulatedLaunch launch;
  at::Tensor X = x.in_double().requires_grad_();
  with_type([&]<typename T>(T) {
    swiglu<T>(launch, {.gate = x.data(), .up = one.data(), .y = y.data(), .rows = 1, .width = kCount});
    swiglu_backward<T>(launch, {.dy = one.data(),
                                .gate = x.data(),
                                .up = one.data(),
                                .dgate = dx.data(),
                                .dup = other.data(),
                                .rows = 1,
                                .width = kCount});
    at::Tensor expected = at::silu(X);
    expected.sum().backward();
    EXPECT_LE(largest_error(y.values(), expected.detach()), bound);
    EXPECT_LE(largest_error(other.values(), expected.detach()), bound);
    EXPECT_LE(largest_error(dx.values(), X.grad()), bound_of_gradients);

    X = x.in_double().requires_grad_();
    bias_gelu<T>(launch, {.x = x.data(), .bias = none.data(), .y = y.data(), .rows = 1, .width = kCount});
    bias_gelu_backward<T>(launch,
                          {.dy = one.data(),
                           .x = x.data(),
                           .bias = none.data(),
                           .dx = dx.data(),
                           .dbias = sums.data<float>(),
                           .rows = 1,
                           .width = kCount},
                          RowParts(1, kCount));
    expected = at::gelu(X, "tanh");
    expected.sum().backward();
    EXPECT_LE(largest_error(y.values(), expected.detach()), bound);
    EXPECT_LE(largest_error(dx.values(), X.grad()), bound_of_gradients);
  });
}

TEST_P(CudaKernels, SwiGluTakesRowsSideBySide) {
  for (int64_t width : {5, 32}) {
    constexpr int64_t kRows = 37;
    const Buffer both(random({kRows, 2 * width})), dy(random({kRows, width}));
    Buffer y({kRows, width}, type()), dboth({kRows, 2 * width}, type());
    with_type([&]<typename T>(T) {
      run_under_all_schedules({&y, &dboth}, [&](const EmulatedLaunch& launch) {
        swiglu<T>(launch, {.gate = both.data<T>(),
                           .up = both.data<T>() + width,
                           .y = y.data(),
                           .rows = kRows,
                           .width = width,
                           .stride = 2 * width});
        swiglu_backward<T>(launch, {.dy = dy.data(),
                                    .gate = both.data<T>(),
                                    .up = both.data<T>() + width,
                                    .dgate = dboth.data<T>(),
                                    .dup = dboth.data<T>() + width,
                                    .rows = kRows,
                                    .width = width,
                                    .stride = 2 * width});
      });
    });
    const at::Tensor leaf = both.in_double().requires_grad_();
    const at::Tensor expected = at::silu(leaf.narrow(1, 0, width)) * leaf.narrow(1, width, width);
    expected.backward(dy.in_double());
    expect_near(y.values(), expected.detach(), "y");
    expect_near(dboth.values(), leaf.grad(), "dboth");
  }
}

TEST_P(CudaKernels, SwiGluOfLargeGatesIsFinite) {
  const double large = type() == at::kHalf ? 6e4 : 1e30;
  const Buffer gate(at::tensor({-large, -200.0, 200.0, large}).to(type())), up(at::ones({4}, type()));
  Buffer y({4}, type());
  with_type([&]<typename T>(T) {
    swiglu<T>(EmulatedLaunch(),
              {.gate = gate.data(), .up = up.data(), .y = y.data(), .rows = 1, .width = 4, .stride = 4});
  });
  expect_near(y.values(), gate.in_double().clamp_min(0), "y");
}

TEST_P(CudaKernels, GeluOfLargeValuesIsFinite) {
  const double large = type() == at::kHalf ? 6e4 : 1e38;
  const Buffer x(at::tensor({-large, -200.0, 200.0, large}).to(type())), bias(at::zeros({4}, type())),
      dy(at::ones({4}, type()));
  Buffer y({4}, type()), dx({4}, type()), sums({1, 4}, at::kFloat);
  with_type([&]<typename T>(T) {
    bias_gelu<T>(EmulatedLaunch(),
                 {.x = x.data(), .bias = bias.data(), .y = y.data(), .rows = 1, .width = 4});
    bias_gelu_backward<T>(EmulatedLaunch(),
                          {.dy = dy.data(),
                           .x = x.data(),
                           .bias = bias.data(),
                           .dx = dx.data(),
                           .dbias = sums.data<float>(),
                           .rows = 1,
                           .width = 4},
                          RowParts(1, 4));
  });
  expect_near(y.values(), x.in_double().clamp_min(0), "y");
  expect_near(dx.values(), x.in_double().gt(0).to(at::kDouble), "dx");
}

struct Shape {
  int64_t rows, width, shift;
};
const std::vector<Shape> kShapes = {{1, 1, 0},    {70, 32, 0}, {9, 33, 0},  {40, 256, 0}, {33, 264, 0},
                                    {5, 1376, 0}, {3, 100, 1}, {0, 512, 0}, {200, 16, 0}};

TEST_P(CudaKernels, BiasGeluIsThatOfTheFormulaAndOfTheCpu) {
  for (const Shape& s : kShapes) {
    SCOPED_TRACE(s.width);
    const RowParts parts(s.rows, s.width, {.grain = 16 * s.width, .most = 4});
    const Buffer x(random({s.rows, s.width}) * 3, s.shift), bias(random({s.width}), s.shift),
        dy(random({s.rows, s.width}), s.shift);
    Buffer y({s.rows, s.width}, type(), s.shift), dx({s.rows, s.width}, type(), s.shift),
        sums({parts.count(), s.width}, at::kFloat), dbias({s.width}, at::kFloat);
    auto forward = [&](const Buffer& to) {
      return BiasGeluRows{
          .x = x.data(), .bias = bias.data(), .y = to.data(), .rows = s.rows, .width = s.width};
    };
    auto backward = [&](const Buffer& to, const Buffer& sums_to) {
      return BiasGeluGradRows{.dy = dy.data(),
                              .x = x.data(),
                              .bias = bias.data(),
                              .dx = to.data(),
                              .dbias = sums_to.data<float>(),
                              .rows = s.rows,
                              .width = s.width};
    };
    with_type([&]<typename T>(T) {
      run_under_all_schedules({&y, &dx, &sums, &dbias}, [&](const EmulatedLaunch& launch) {
        bias_gelu<T>(launch, forward(y));
        bias_gelu_backward<T>(launch, backward(dx, sums), parts);
        const PartTotal total{
            .sums = sums.data<float>(), .parts = parts.count(), .width = s.width, .to = dbias.data()};
        totals<T>(launch, &total, 1);
      });
    });
    at::Tensor X = x.in_double().requires_grad_(), B = bias.in_double().requires_grad_();
    const at::Tensor expected = at::gelu(X + B, "tanh");
    expected.backward(dy.in_double());
    expect_near(y.values(), expected.detach(), "y");
    expect_near(dx.values(), X.grad(), "dx");
    expect_near(dbias.values(), B.grad(), "dbias", 1e-5);

    Buffer cpu_y({s.rows, s.width}, type()), cpu_dx({s.rows, s.width}, type()),
        cpu_sums(at::zeros({parts.count(), s.width}));
    cpu_row_kernels(element()).bias_gelu(forward(cpu_y));
    cpu_row_kernels(element()).bias_gelu_backward(backward(cpu_dx, cpu_sums), parts);
    expect_near(y.values(), cpu_y.values(), "y of the CPU");
    expect_near(dx.values(), cpu_dx.values(), "dx of the CPU");
    expect_near(sums.values(), cpu_sums.values(), "sums of the CPU", 1e-5);
  }
}

TEST_P(CudaKernels, RowsAddUpToTheirSum) {
  for (const Shape& s : kShapes) {
    SCOPED_TRACE(s.width);
    const RowParts parts(s.rows, s.width, {.grain = 2 * s.width, .most = 50});
    const Buffer x(random({s.rows, s.width}), s.shift);
    const at::Tensor before = random({s.width}).to(at::kFloat);
    Buffer sums({parts.count(), s.width}, at::kFloat), rounded({s.width}, type()), added(before);
    with_type([&]<typename T>(T) {
      run_under_all_schedules({&sums, &rounded, &added}, [&](const EmulatedLaunch& launch) {
        add_rows<T>(launch, x.data(), sums.data<float>(), parts);
        PartTotal both[2];
        for (PartTotal& each : both) {
          each = {.sums = sums.data<float>(), .parts = parts.count(), .width = s.width};
        }
        both[0].to = rounded.data();
        both[0].to_fp32 = type() == at::kFloat;
        both[1].to = added.data();
        both[1].adds = true;
        totals<T>(launch, both, 2);
      });
    });
    const at::Tensor expected = x.in_double().sum(0);
    expect_near(rounded.values(), expected, "sums in the type");
    expect_near(added.values(), expected + before.to(at::kDouble), "sums added", 1e-5);
  }
}

TEST_P(CudaKernels, RotaryTurnsPairsAsTheFormulaAndTheCpuDo) {
  struct Heads {
    int64_t batch, tokens, heads, head_dim, shift;
  };
  for (const Heads& h : std::vector<Heads>{{1, 5, 3, 2, 0},
                                           {2, 3, 1, 16, 0},
                                           {1, 7, 2, 64, 0},
                                           {1, 2, 40, 128, 0},
                                           {2, 3, 3, 12, 0},
                                           {1, 4, 2, 64, 1},
                                           {0, 4, 2, 64, 0}}) {
    for (bool back : {false, true}) {
      SCOPED_TRACE(h.head_dim);
      const std::vector<int64_t> shape{h.batch, h.tokens, h.heads, h.head_dim};
      const Buffer x(random(shape), h.shift);
      const at::Tensor half = at::rand({h.tokens, h.head_dim / 2}) * 6, angles = at::cat({half, half}, -1);
      const Buffer cos(angles.cos(), h.shift), sin(angles.sin(), h.shift);
      Buffer y(shape, type(), h.shift), in_place(x.values(), h.shift), cpu_y(shape, type());
      auto arguments = [&](const Buffer& from, const Buffer& to) {
        return RotaryRows{.x = from.data(),
                          .y = to.data(),
                          .cos = cos.data<float>(),
                          .sin = sin.data<float>(),
                          .rows = h.batch * h.tokens,
                          .tokens = h.tokens,
                          .heads = h.heads,
                          .head_dim = h.head_dim,
                          .stride = h.heads * h.head_dim,
                          .back = back};
      };
      with_type([&]<typename T>(T) {
        run_under_all_schedules({&y, &in_place}, [&](const EmulatedLaunch& launch) {
          rotary<T>(launch, arguments(x, y));
          rotary<T>(launch, arguments(in_place, in_place));
        });
      });
      const at::Tensor X = x.in_double(), first = X.narrow(-1, 0, h.head_dim / 2),
                       second = X.narrow(-1, h.head_dim / 2, h.head_dim / 2);
      const at::Tensor c = cos.in_double().unsqueeze(1), s = sin.in_double().unsqueeze(1) * (back ? -1 : 1);
      expect_near(y.values(), X * c + at::cat({-second, first}, -1) * s, "y");
      EXPECT_TRUE(have_equal_bits(in_place.values(), y.values()));
      cpu_row_kernels(element()).rotary(arguments(x, cpu_y));
      expect_near(y.values(), cpu_y.values(), "y of the CPU");
    }
  }
}

TEST_P(CudaKernels, RotaryLeavesTheHeadsBehindItsOwnInARow) {
  constexpr int64_t kTokens = 5, kHeads = 3, kDim = 32, kStride = 5 * kDim;
  const Buffer x(random({2, kTokens, kStride}));
  const at::Tensor half = at::rand({kTokens, kDim / 2}) * 6, angles = at::cat({half, half}, -1);
  const Buffer cos(angles.cos()), sin(angles.sin());
  Buffer y(x.values());
  auto arguments = [&](const Buffer& from, const Buffer& to, int64_t stride) {
    return RotaryRows{.x = from.data(),
                      .y = to.data(),
                      .cos = cos.data<float>(),
                      .sin = sin.data<float>(),
                      .rows = 2 * kTokens,
                      .tokens = kTokens,
                      .heads = kHeads,
                      .head_dim = kDim,
                      .stride = stride};
  };
  const Buffer alone(x.values().narrow(2, 0, kHeads * kDim).contiguous());
  Buffer turned({2, kTokens, kHeads * kDim}, type());
  with_type([&]<typename T>(T) {
    run_under_all_schedules({&y, &turned}, [&](const EmulatedLaunch& launch) {
      rotary<T>(launch, arguments(y, y, kStride));
      rotary<T>(launch, arguments(alone, turned, kHeads * kDim));
    });
  });
  constexpr int64_t kRest = kStride - kHeads * kDim;
  EXPECT_TRUE(y.values().narrow(2, 0, kHeads * kDim).equal(turned.values()));
  EXPECT_TRUE(y.values().narrow(2, kHeads * kDim, kRest).equal(x.values().narrow(2, kHeads * kDim, kRest)));
}

TEST_P(CudaKernels, GradientsOfHeadsAreTurnedBackAndJoined) {
  struct Heads {
    int64_t batch, tokens, queries, keys, head_dim;
    bool heads_first;  ///< in memory
  };
  for (const Heads& h : std::vector<Heads>{{2, 5, 4, 2, 32, false},
                                           {2, 5, 4, 2, 32, true},
                                           {1, 3, 16, 16, 128, true},
                                           {3, 7, 6, 3, 6, false},
                                           {1, 2, 3, 1, 96, true},
                                           {2, 1, 1, 1, 640, false},
                                           {0, 4, 2, 2, 16, false}}) {
    SCOPED_TRACE(h.head_dim);
    const auto memory_of = [&](int64_t heads) {
      return h.heads_first ? random({h.batch, heads, h.tokens, h.head_dim})
                           : random({h.batch, h.tokens, heads, h.head_dim});
    };
    const Buffer q(memory_of(h.queries)), k(memory_of(h.keys)), v(memory_of(h.keys));
    const auto seen = [&](const Buffer& x) {
      return h.heads_first ? x.values().transpose(1, 2) : x.values();
    };
    const auto heads_of = [&](const Buffer& x) -> JoinedGradients::Heads {
      const at::Tensor view = seen(x);
      return {x.data(), view.size(2), view.stride(0), view.stride(1), view.stride(2)};
    };
    const at::Tensor half = at::rand({h.tokens, h.head_dim / 2}) * 6, angles = at::cat({half, half}, -1);
    const Buffer cos(angles.cos()), sin(angles.sin());
    const int64_t all = h.queries + 2 * h.keys;
    Buffer y({h.batch, h.tokens, all, h.head_dim}, type());
    with_type([&]<typename T>(T) {
      run_under_all_schedules({&y}, [&](const EmulatedLaunch& launch) {
        join_rotary<T>(launch, {.queries = heads_of(q),
                                .keys = heads_of(k),
                                .values = heads_of(v),
                                .y = y.data(),
                                .cos = cos.data<float>(),
                                .sin = sin.data<float>(),
                                .sequences = h.batch,
                                .tokens = h.tokens,
                                .head_dim = h.head_dim});
      });
    });
    Buffer expected(at::cat({seen(q), seen(k), seen(v)}, 2));
    cpu_row_kernels(element()).rotary({.x = expected.data(),
                                       .y = expected.data(),
                                       .cos = cos.data<float>(),
                                       .sin = sin.data<float>(),
                                       .rows = h.batch * h.tokens,
                                       .tokens = h.tokens,
                                       .heads = h.queries + h.keys,
                                       .head_dim = h.head_dim,
                                       .stride = all * h.head_dim,
                                       .back = true});
    expect_near(y.values(), expected.values(), "joined gradients");
    EXPECT_TRUE(y.values().narrow(2, all - h.keys, h.keys).equal(seen(v))) << "gradients of values";
  }
}

TEST_P(CudaKernels, GradientsOfHeadsAreJoinedAndSummed) {
  struct Heads {
    int64_t batch, tokens, queries, keys, head_dim;
    bool has_gap = false;  ///< behind a token's heads in memory
    int64_t shift = 0;
  };
  for (const Heads& h : std::vector<Heads>{{2, 50, 12, 12, 64},
                                           {3, 7, 4, 2, 32},
                                           {1, 40, 16, 16, 128, true},
                                           {3, 7, 6, 3, 6},
                                           {2, 9, 4, 4, 16, false, 1},
                                           {0, 4, 2, 2, 16}}) {
    SCOPED_TRACE(h.head_dim);
    const int64_t rows = h.batch * h.tokens, all = h.queries + 2 * h.keys, width = all * h.head_dim;
    const auto memory_of = [&](int64_t heads) {
      return Buffer(random({rows, h.has_gap ? heads + 1 : heads, h.head_dim}), h.shift);
    };
    const Buffer q = memory_of(h.queries), k = memory_of(h.keys), v = memory_of(h.keys);
    const auto heads_of = [&](const Buffer& x, int64_t heads) -> JoinedGradients::Heads {
      const int64_t of_token = x.values().stride(0);
      return {x.data(), heads, h.tokens * of_token, of_token, h.head_dim};
    };
    const auto seen = [&](const Buffer& x, int64_t heads) { return x.values().narrow(1, 0, heads); };
    const RowParts parts(rows, width, {.grain = 3 * width, .most = 5});
    Buffer y({rows, all, h.head_dim}, type()), alone({rows, all, h.head_dim}, type()),
        sums({parts.count(), width}, at::kFloat), expected_sums({parts.count(), width}, at::kFloat);
    const auto arguments = [&](const Buffer& to) {
      return JoinedGradients{.queries = heads_of(q, h.queries),
                             .keys = heads_of(k, h.keys),
                             .values = heads_of(v, h.keys),
                             .y = to.data(),
                             .sequences = h.batch,
                             .tokens = h.tokens,
                             .head_dim = h.head_dim};
    };
    with_type([&]<typename T>(T) {
      run_under_all_schedules({&y, &alone, &sums}, [&](const EmulatedLaunch& launch) {
        join_rows<T>(launch, arguments(y), sums.data<float>(), parts);
        join_rows<T>(launch, arguments(alone), nullptr, parts);
      });
      add_rows<T>(EmulatedLaunch(), y.data(), expected_sums.data<float>(), parts);
    });
    EXPECT_TRUE(y.values().equal(at::cat({seen(q, h.queries), seen(k, h.keys), seen(v, h.keys)}, 1)));
    EXPECT_TRUE(have_equal_bits(alone.values(), y.values()));
    EXPECT_TRUE(have_equal_bits(sums.values(), expected_sums.values())) << "those of add_rows()";
  }
}

TEST_P(CudaKernels, SumOfSquaresIsThatOfDoublePrecision) {
  for (int64_t shift : {0, 1}) {
    for (int64_t n : {0, 1, 5, 1000, 40'001}) {
      const Buffer x(random({n}), shift);
      Buffer scratch({kSquareParts}, at::kDouble), sum({1}, at::kDouble);
      with_type([&]<typename T>(T) {
        run_under_all_schedules({&sum}, [&](const EmulatedLaunch& launch) {
          sum_of_squares<T>(launch, x.data(), n, scratch.data<double>(), sum.data<double>());
        });
      });
      const double expected = x.in_double().square().sum().item<double>();
      EXPECT_NEAR(sum.values().item<double>(), expected, 1e-13 * expected) << n;
    }
  }
}

TEST_P(CudaKernels, SumOfSquaresKeepsInfinityAndNan) {
  for (double odd : {double{INFINITY}, double{NAN}}) {
    at::Tensor values = at::ones({3000}, type());
    values[2999] = odd;
    const Buffer x(values);
    Buffer scratch({kSquareParts}, at::kDouble), sum({1}, at::kDouble);
    with_type([&]<typename T>(T) {
      sum_of_squares<T>(EmulatedLaunch(), x.data(), 3000, scratch.data<double>(), sum.data<double>());
    });
    EXPECT_EQ(std::isnan(sum.values().item<double>()), std::isnan(odd));
    EXPECT_FALSE(std::isfinite(sum.values().item<double>()));
  }
}

TEST_P(CudaKernels, ScaleMultipliesUnlessTheFactorIsOne) {
  for (int64_t shift : {0, 1}) {
    for (float factor : {0.3F, 1.0F}) {
      const at::Tensor before = random({5001});
      const Buffer by(at::full({1}, factor));
      Buffer x(before, shift);
      with_type([&]<typename T>(T) {
        run_under_all_schedules({&x}, [&](const EmulatedLaunch& launch) {
          scale<T>(launch, {.x = x.data(), .n = 5001, .factor = by.data<float>()});
        });
      });
      EXPECT_TRUE(have_equal_bits(x.values(), before * factor));
    }
  }
}

}  // namespace
}  // namespace fsdp::kernels::cuda
