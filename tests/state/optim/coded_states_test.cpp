// States that are kept in 8 bits: updates are computed in fp32, and the states encoded afterwards.

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "base/util/error.h"
#include "state/optim/shards.h"
#include "support/counting_allocator.h"
#include "support/source_folder.h"

namespace fsdp::optim::coded {
namespace {

struct StateCase {
  std::string name;
  bool fused = true;
  at::ScalarType values = at::kFloat;
};

constexpr int64_t kRows = 70, kColumns = 101, kMatrix = kRows * kColumns, kNumel = 2 * kMatrix + kColumns;

std::vector<std::pair<std::string, at::Tensor>> tensors() {
  return {{"layers.0.weight", random_values(kMatrix, "matrix").view({kRows, kColumns})},
          {"layers.0.norm", random_values(kColumns, "vector")},
          {"embed_tokens.weight", random_values(kMatrix, "embedding").view({kRows, kColumns})}};
}

/// Muon's matrices by themselves.
class LocalMatrices final : public WholeMatrices {
 public:
  bool has_matrices(size_t) const override { return true; }
  void map(size_t, const at::Tensor& flat, const Function& function) override {
    const at::Tensor part = flat.narrow(0, 0, kMatrix);
    part.copy_(function(part.view({kRows, kColumns})).flatten());
  }
  void add_up(size_t, const at::Tensor&) override {}
};

std::unique_ptr<Optimizer> make(const OptimizerOptions& options, at::ScalarType type = at::kFloat) {
  static LocalMatrices matrices;
  FlatParameter parameter = parameter_of_tensors(options, tensors());
  parameter.value = parameter.value.to(type);
  return make_optimizer(options, {parameter}, &matrices);
}

/// The states of the matrix, in fp32, by name. Those that it has.
std::vector<at::Tensor> states_of_matrix(const Optimizer& optimizer) {
  std::vector<at::Tensor> states;
  for (const StateKind& kind : optimizer.states()) {
    const Treatment& treatment = optimizer.parameters()[0].tensors[0].treatment;
    if (kind.covers(treatment)) states.push_back(optimizer.state_of(kind.name, 0, 0, kMatrix).numbers());
  }
  return states;
}

class StatesInInt8 : public ::testing::TestWithParam<StateCase> {
 protected:
  static OptimizerOptions options(StateType type = StateType::kInt8) {
    OptimizerOptions options;
    options.name = GetParam().name;
    options.momentum = options.name == "sgd" || options.name == "muon" ? 0.9 : 0;
    options.fused = GetParam().fused;
    options.weight_decay = 0.1;
    options.state_dtype = type;
    return options;
  }
  static std::unique_ptr<Optimizer> make(const OptimizerOptions& options) {
    return coded::make(options, GetParam().values);
  }
};

INSTANTIATE_TEST_SUITE_P(
    All, StatesInInt8, ::testing::ValuesIn([] {
      std::vector<StateCase> cases;
      for (const char* name : {"adamw", "adam", "sgd", "lion", "adamax", "adagrad", "adadelta", "muon"}) {
        cases.push_back({name});
        cases.push_back({name, false});
      }
      cases.push_back({"adamw", true, at::kBFloat16});
      cases.push_back({"lion", true, at::kBFloat16});
      return cases;
    }()),
    [](const auto& info) {
      return info.param.name + (info.param.fused ? "" : "_composed") +
             (info.param.values == at::kFloat ? "" : "_of_low_values");
    });

TEST_P(StatesInInt8, AreThoseOfFp32InCodes) {
  auto wide = make(options(StateType::kFloat32)), stored = make(options());
  const at::Tensor gradient = random_values(kNumel, "gradient");
  wide->step({gradient.clone()}, 1e-2);
  stored->step({gradient.clone()}, 1e-2);
  // The states are zero at first, so that the first update is the same.
  EXPECT_TRUE(at::equal(stored->parameters()[0].value, wide->parameters()[0].value));
  const std::vector<at::Tensor> exact = states_of_matrix(*wide), found = states_of_matrix(*stored);
  ASSERT_EQ(found.size(), exact.size());
  for (const StateKind& kind : stored->states()) {
    if (!kind.covers(stored->parameters()[0].tensors[0].treatment)) continue;
    const StateView view = stored->state_of(kind.name, 0, 0, kMatrix);
    ASSERT_TRUE(view.is_coded()) << kind.name;
    kernels::BlockCodes codes{at::zeros({kMatrix}, at::kByte), at::zeros_like(view.codes.scales), 0,
                              kind.is_signed};
    kernels::encode(wide->state_of(kind.name, 0, 0, kMatrix).data, codes);
    EXPECT_TRUE(view.codes.codes.equal(codes.codes)) << kind.name;
    EXPECT_TRUE(view.codes.scales.equal(codes.scales)) << kind.name;
  }
}

TEST_P(StatesInInt8, ContinueWithTheSameBits) {
  const at::Tensor gradients = random_values(kNumel, "gradient");
  auto whole = make(options()), resumed = make(options());
  take_steps(*whole, 3, gradients, 1e-2);
  resumed->parameters()[0].value.copy_(whole->parameters()[0].value);
  for (const std::string& name : whole->state_names()) {
    resumed->state(name, 0).copy_(whole->state(name, 0));
    for (const FlatParameter::Tensor& tensor : whole->parameters()[0].tensors) {
      const StateKind& kind = whole->states()[name == whole->state_names()[0] ? 0 : 1];
      if (!tensor.treatment.in_8_bits || !kind.covers(tensor.treatment)) continue;
      // As a checkpoint does, which has the numbers in fp32.
      kernels::encode(whole->state_of(name, 0, tensor.begin, tensor.end()).numbers(),
                      resumed->state_of(name, 0, tensor.begin, tensor.end()).codes);
    }
  }
  resumed->set_step_count(3);
  take_steps(*whole, 2, gradients, 1e-2);
  take_steps(*resumed, 2, gradients, 1e-2);
  EXPECT_TRUE(at::equal(resumed->parameters()[0].value, whole->parameters()[0].value));
  for (const std::string& name : whole->state_names()) {
    const auto expected = whole->state_memory(name, 0), found = resumed->state_memory(name, 0);
    for (size_t k = 0; k < expected.size(); ++k) {
      EXPECT_TRUE(!expected[k].defined() || at::equal(found[k], expected[k])) << name << " " << k;
    }
  }
}

TEST_P(StatesInInt8, TrainAlmostAsStatesInFp32Do) {
  auto wide = make(options(StateType::kFloat32)), stored = make(options());
  const at::Tensor gradients = random_values(kNumel, "gradient");
  const at::Tensor before = wide->parameters()[0].value.to(at::kFloat).clone();
  take_steps(*wide, 50, gradients, 1e-3);
  take_steps(*stored, 50, gradients, 1e-3);
  const at::Tensor moved = wide->parameters()[0].value.to(at::kFloat) - before;
  const at::Tensor off = stored->parameters()[0].value.to(at::kFloat) - wide->parameters()[0].value;
  EXPECT_GT(off.abs().max().item<float>(), 0);
  const bool low = GetParam().values != at::kFloat;
  EXPECT_LT(off.norm().item<float>(), (low ? 0.25F : 0.1F) * moved.norm().item<float>());
}

TEST_P(StatesInInt8, StayInFp32ForVectorsAndEmbeddings) {
  auto optimizer = make(options());
  for (const StateKind& kind : optimizer->states()) {
    const auto [numbers, codes, scales] = optimizer->state_memory(kind.name, 0);
    const bool has_matrix = kind.covers(optimizer->parameters()[0].tensors[0].treatment);
    const bool has_others = kind.covers(optimizer->parameters()[0].tensors[1].treatment);
    EXPECT_EQ(numbers.numel(), has_others ? kColumns + kMatrix : 0) << kind.name;
    EXPECT_EQ(numbers.scalar_type(), at::kFloat);
    EXPECT_EQ(codes.defined() ? codes.numel() : 0, has_matrix ? kMatrix : 0) << kind.name;
  }
}

// In one pass, with the bits of fp32 states that are encoded afterwards.
TEST(CodedStatesOfAdamW, HaveTheBitsOfAnEncodingAfterTheStep) {
  for (at::ScalarType gradient_type : {at::kFloat, at::kBFloat16}) {
    OptimizerOptions options;
    auto wide = make(options);
    options.state_dtype = StateType::kInt8;
    auto stored = make(options);
    const at::Tensor gradient = random_values(kNumel, "gradient").to(gradient_type);
    for (int step = 1; step <= 3; ++step) {
      wide->step({gradient.clone()}, 1e-2);
      stored->step({gradient.clone()}, 1e-2);
      EXPECT_TRUE(same_bits(stored->parameters()[0].value, wide->parameters()[0].value)) << step;
      for (const char* name : {"exp_avg", "exp_avg_sq"}) {
        const at::Tensor exact = wide->state(name, 0).narrow(0, 0, kMatrix);
        const kernels::BlockCodes codes = stored->state_of(name, 0, 0, kMatrix).codes;
        kernels::BlockCodes expected{at::zeros_like(codes.codes), at::zeros_like(codes.scales), 0,
                                     codes.is_signed};
        kernels::encode(exact, expected);
        EXPECT_TRUE(expected.codes.equal(codes.codes)) << name << " in step " << step;
        exact.copy_(kernels::decoded(codes));  // goes on from the encoded state
      }
    }
  }
}

/// Returns the largest distance between neighbours near a value, as a share of the scale.
float code_step(float share, bool is_signed) {
  const kernels::BlockCodes all{at::arange(256).to(at::kByte), at::ones({1}), 0, is_signed};
  const at::Tensor values = kernels::decoded(all).narrow(0, 0, is_signed ? 128 : 256);
  const int64_t above = values.lt(std::abs(share)).sum().item<int64_t>();
  float most = 0;
  for (int64_t k = std::max<int64_t>(above - 1, 1); k <= std::min(above + 1, values.numel() - 1); ++k) {
    most = std::max(most, (values[k] - values[k - 1]).item<float>());
  }
  return most;
}

double rms(const at::Tensor& x) { return std::sqrt(x.square().mean().item<double>()); }

// The figures are those of adamw_8bit.py, whose code has other values by up to 0.7 %.
TEST(CodedStatesOfAdamW, AreThoseOfTorchaoToACodeStepAndDriftNoFartherFromFp32) {
  constexpr int64_t rows = 64, columns = 64, steps = 8, n = rows * columns, apart = 16;
  OptimizerOptions options{.name = "adamw", .betas = {0.9, 0.95}, .eps = 1e-8, .weight_decay = 0.1};
  const auto make_with = [&](StateType type) {
    options.state_dtype = type;
    const at::Tensor values = at::linspace(-1, 1, n).view({rows, columns});
    return make_optimizer(options, {parameter_of_tensors(options, {{"w", values}})});
  };
  auto coded = make_with(StateType::kInt8), exact = make_with(StateType::kFloat32);
  std::ifstream file(testing::source_folder() + "/tests/state/optim/adamw_8bit.txt");
  const at::Tensor i = at::arange(n), sizes = at::exp2(-((i * 31 + i.div(5, "floor")) % 13).to(at::kFloat));
  for (int64_t step = 1; step <= steps; ++step) {
    const at::Tensor gradient = ((i * 7919 + step * 104729) % 2001 - 1000).to(at::kFloat) / 1024 * sizes;
    coded->step({gradient.clone()}, 1e-2);
    exact->step({gradient.clone()}, 1e-2);
    if (step != 1 && step != steps) continue;
    at::Tensor theirs = at::empty({3, n / apart});
    for (int64_t line = 0; line < n / apart; ++line) {
      for (int64_t k = 0; k < 3; ++k) file >> theirs[k].data_ptr<float>()[line];
    }
    ASSERT_TRUE(file);
    for (int64_t k = 0; k < 2; ++k) {
      const char* name = k == 0 ? "exp_avg" : "exp_avg_sq";
      const StateView view = coded->state_of(name, 0, 0, n);
      const at::Tensor ours = view.numbers().slice(0, 0, n, apart),
                       wide = exact->state_of(name, 0, 0, n).data.slice(0, 0, n, apart);
      EXPECT_LT(rms(ours - wide), 1.1 * rms(theirs[k] - wide)) << name << ", step " << step;
      for (int64_t line = 0; step == 1 && line < n / apart; ++line) {
        const float scale = view.codes.scales[line * apart / kernels::kCodedBlock].item<float>();
        const float found = ours[line].item<float>(), expected = theirs[k][line].item<float>();
        EXPECT_NEAR(found, expected, scale * code_step(expected / scale, k == 0)) << name << " " << line;
      }
    }
    const at::Tensor values = coded->parameters()[0].value.slice(0, 0, n, apart),
                     wide = exact->parameters()[0].value.slice(0, 0, n, apart);
    EXPECT_LE(rms(values - wide), 1.1 * rms(theirs[2] - wide) + 1e-7) << step;
  }
}

// Blocks are those of the whole tensor, so that only blocks that the cut divides differ.
TEST(CodedStatesOfAdamW, AreThoseOfTheWholeInWholeBlocks) {
  OptimizerOptions options;
  options.state_dtype = StateType::kInt8;
  const std::vector<int64_t> shape = {64, 1003};
  const int64_t n = shape[0] * shape[1];
  const at::Tensor values = random_values(n, "value"), gradient = random_values(n, "gradient");
  const auto stepped = [&](int64_t begin, int64_t end) {
    FlatParameter parameter{"unit", values.slice(0, begin, end).clone(), {}};
    const Treatment treatment = treatment_of(options, "w", shape);
    parameter.ranges.push_back({0, end - begin, treatment});
    parameter.tensors.push_back({"w", shape, treatment, {{begin, end}}, 0});
    auto optimizer = make_optimizer(options, {parameter});
    take_steps(*optimizer, 3, gradient.slice(0, begin, end), 1e-2);
    return optimizer;
  };
  const auto whole = stepped(0, n);
  for (int ranks : {3, 7}) {
    for (int rank = 0; rank < ranks; ++rank) {
      const int64_t size = (n + ranks - 1) / ranks, begin = rank * size, end = std::min(begin + size, n);
      const auto part = stepped(begin, end);
      for (const char* name : {"exp_avg", "exp_avg_sq"}) {
        const at::Tensor expected = whole->state_of(name, 0, begin, end).numbers(),
                         found = part->state_of(name, 0, 0, end - begin).numbers();
        const int64_t first = (begin + 255) / 256 * 256 - begin, last = end / 256 * 256 - begin;
        EXPECT_TRUE(found.slice(0, first, last).equal(expected.slice(0, first, last)))
            << name << ", rank " << rank << " of " << ranks;
        const float scale = part->state_of(name, 0, 0, end - begin).codes.scales.max().item<float>();
        EXPECT_LT((found - expected).abs().max().item<float>(), 0.02F * scale) << name;
      }
    }
  }
}

TEST(CodedStates, AreUpdatedInPiecesOfWholeBlocks) {
  OptimizerOptions options;
  options.state_dtype = StateType::kInt8;
  const int64_t n = 2 * kPiece + 77, begin = 100;
  const at::Tensor gradient = random_values(n, "gradient");
  const auto stepped = [&](const std::string& name, int64_t first) {
    options.name = name;
    FlatParameter parameter{"unit", at::ones({n}), {}};
    const Treatment treatment = treatment_of(options, "w", {2, n});
    parameter.ranges.push_back({0, n, treatment});
    parameter.tensors.push_back({"w", {2, n}, treatment, {{first, first + n}}, 0});
    auto optimizer = make_optimizer(options, {parameter});
    testing::CountingAllocator::Scope counter;
    optimizer->step({gradient}, 1e-2);
    EXPECT_LT(counter.peak_bytes(), name == "adamw" ? 4096 : 64 << 20) << name;
    return optimizer;
  };
  stepped("adamw", 0);
  for (int64_t first : {int64_t{0}, begin}) {
    const auto optimizer = stepped("lion", first);
    const kernels::BlockCodes codes = optimizer->state_of("exp_avg", 0, 0, n).codes;
    kernels::BlockCodes expected{at::zeros_like(codes.codes), at::zeros_like(codes.scales), codes.phase,
                                 true};
    kernels::encode(gradient * static_cast<float>(1 - 0.95), expected);
    EXPECT_TRUE(codes.scales.allclose(expected.scales, 1e-6)) << first;
    EXPECT_LT((codes.codes.to(at::kInt) - expected.codes.to(at::kInt)).abs().gt(0).sum().item<int64_t>(), 40);
  }
}

TEST(CodedStates, AverageOfWeightsStaysInFp32) {
  OptimizerOptions options;
  options.ema_decay = 0.5;
  options.state_dtype = StateType::kInt8;
  auto optimizer = make(options);
  optimizer->step({random_values(kNumel, "gradient")}, 1e-2);
  EXPECT_TRUE(optimizer->state(kEmaState, 0).equal(optimizer->parameters()[0].value));
}

TEST(CodedStates, AreRefusedWhereSumsOverTensorsAreTaken) {
  for (const char* name : {"lamb", "adafactor"}) {
    OptimizerOptions options;
    options.name = name;
    options.state_dtype = StateType::kInt8;
    try {
      make(options);
      ADD_FAILURE() << name;
    } catch (const util::Error& error) {
      EXPECT_NE(std::string(error.what()).find("int8"), std::string::npos) << error.what();
    }
  }
}

}  // namespace
}  // namespace fsdp::optim::coded
