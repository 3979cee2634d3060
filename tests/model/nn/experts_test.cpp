#include "model/nn/experts.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>

#include "base/util/error.h"
#include "base/util/matrix_units.h"
#include "model/nn/lora.h"
#include "model/nn/recompute.h"
#include "support/tiny_models.h"

namespace fsdp::nn {
namespace {

using testing::family_options;
using testing::make_initialized;

std::vector<std::string> matmuls() {
  std::vector<std::string> names = {"mkl", "onednn"};
  if (util::has_matrix_unit()) names.emplace_back("amx");
  return names;
}

std::map<std::string, at::Tensor> parameters_of(torch::nn::Module& module) {
  std::map<std::string, at::Tensor> parameters;
  for (const auto& item : module.named_parameters()) parameters.emplace(item.key(), item.value());
  return parameters;
}

std::shared_ptr<ExpertFeedForward> make_experts(const ModelOptions& options) {
  auto experts = std::make_shared<ExpertFeedForward>(options);
  initialize_parameters(*experts, options, 3);
  return experts;
}

/// [2, rows, 16], none below 0.
at::Tensor inputs(int64_t rows) {
  return at::arange(2 * rows * 16, at::kFloat).sin().abs().view({2, rows, 16});
}

/// Token by token, as the papers write it.
at::Tensor expected(ExpertFeedForward& experts, const ModelOptions& options, const at::Tensor& x) {
  const auto weights = parameters_of(experts);
  const bool mixtral = options.architecture == "mixtral";
  const at::Tensor rows = x.view({-1, 16});
  std::vector<at::Tensor> results;
  for (const at::Tensor& row : rows.split(1)) {
    const at::Tensor p = at::linear(row, weights.at("gate.weight")).softmax(-1).flatten();
    const auto [largest, chosen] = p.topk(options.num_experts_per_tok);
    at::Tensor sum = at::zeros_like(row);
    for (int64_t i = 0; i < chosen.numel(); ++i) {
      const std::string expert = concat("experts.", chosen[i].item<int64_t>(), ".");
      const auto by = [&](const char* of_mixtral, const char* of_qwen3, const at::Tensor& of) {
        return at::linear(of, weights.at(expert + (mixtral ? of_mixtral : of_qwen3) + ".weight"));
      };
      const at::Tensor inner = at::silu(by("w1", "gate_proj", row)) * by("w3", "up_proj", row);
      const bool sums_to_1 = mixtral || options.norm_topk_prob;
      sum = sum + by("w2", "down_proj", inner) * (sums_to_1 ? largest[i] / largest.sum() : largest[i]);
    }
    results.push_back(sum);
  }
  return at::cat(results).view(x.sizes());
}

TEST(Experts, GiveEachTokenTheWeightedSumOfItsOwn) {
  for (const char* family : {"mixtral", "qwen3_moe"}) {
    for (const bool norm : {false, true}) {
      for (const std::string& matmul : matmuls()) {
        ModelOptions options = family_options(family);
        if (options.architecture == "qwen3_moe") options.norm_topk_prob = norm;
        options.matmul = matmul;
        auto experts = make_experts(options);
        const at::Tensor x = inputs(40).requires_grad_(true), other = inputs(40).requires_grad_(true);
        const at::Tensor direction = at::arange(x.numel(), at::kFloat).cos().view(x.sizes());
        (experts->forward(x) * direction).sum().backward();
        std::map<std::string, at::Tensor> found;
        for (auto& [name, parameter] : parameters_of(*experts)) {
          found[name] = parameter.grad().clone();
          parameter.mutable_grad() = at::Tensor();
        }
        const at::Tensor wanted = expected(*experts, options, other);
        EXPECT_TRUE(at::allclose(experts->forward(x), wanted, 1e-5, 1e-6)) << family << norm << matmul;
        (wanted * direction).sum().backward();
        EXPECT_TRUE(at::allclose(x.grad(), other.grad(), 1e-4, 1e-5)) << family << norm << matmul;
        for (const auto& [name, parameter] : parameters_of(*experts)) {
          // Undefined for an expert without tokens.
          const at::Tensor gradient =
              parameter.grad().defined() ? parameter.grad() : at::zeros_like(parameter);
          EXPECT_TRUE(at::allclose(found.at(name), gradient, 1e-4, 1e-5)) << family << norm << matmul << name;
        }
      }
    }
  }
}

/// Sees how many rows each expert gets.
class CountsRows final : public CallHook {
 public:
  explicit CountsRows(std::vector<int64_t>& rows) : rows_(rows) {}
  std::shared_ptr<void> before(const CallTensors& inputs) override {
    rows_.push_back(inputs.front()->size(0));
    return nullptr;
  }
  void after(const CallTensors&) override {}

 private:
  std::vector<int64_t>& rows_;
};

void count_rows(torch::nn::Module& model, std::vector<int64_t>& rows) {
  for (const auto& module : model.modules()) {
    auto* stage = dynamic_cast<Stage*>(module.get());
    if (stage != nullptr && stage->type_name() == "expert") {
      stage->attach(std::make_shared<CountsRows>(rows));
    }
  }
}

/// No token, none of which is below 0, then chooses expert 1.
void starve_expert_1(torch::nn::Module& module) {
  const at::NoGradGuard no_grad;
  for (auto& [name, parameter] : parameters_of(module)) {
    if (name.ends_with("gate.weight") && parameter.dim() == 2 && parameter.size(0) <= 5)
      parameter[1].fill_(-50);
  }
}

TEST(Experts, WithoutTokensRunAndHaveZeroGradients) {
  for (const char* family : {"mixtral", "qwen3_moe"}) {
    for (const std::string& matmul : matmuls()) {
      for (const auto type : {at::kFloat, at::kBFloat16}) {
        for (const bool fused : {true, false}) {
          ModelOptions options = family_options(family);
          options.matmul = matmul;
          options.fused_kernels = fused;
          auto experts = make_experts(options);
          starve_expert_1(*experts);
          experts->to(type);
          std::vector<int64_t> rows;
          count_rows(*experts, rows);
          experts->forward(inputs(40).to(type)).sum().backward();
          ASSERT_EQ(std::ssize(rows), options.num_experts);
          EXPECT_EQ(rows[1], 0);
          EXPECT_GT(rows[0], 0);
          for (const auto& [name, parameter] : parameters_of(*experts)) {
            ASSERT_TRUE(parameter.grad().defined()) << name;
            if (name.starts_with("experts.1.")) {
              EXPECT_EQ(parameter.grad().abs().max().item<float>(), 0) << name;
            }
          }
        }
      }
    }
  }
}

TEST(Experts, WithoutTokensAreLeftOutOnlyWhereNothingSeesThem) {
  const ModelOptions options = family_options("mixtral");
  auto experts = make_experts(options);
  starve_expert_1(*experts);
  const at::NoGradGuard no_grad;
  const at::Tensor x = inputs(3), plain = experts->forward(x);
  std::vector<int64_t> rows;
  count_rows(*experts, rows);
  EXPECT_TRUE(at::equal(experts->forward(x), plain));
  EXPECT_EQ(std::ssize(rows), options.num_experts);
}

// ---- the loss that balances them

LossOptions balanced(double coefficient) {
  LossOptions options;
  options.router_aux_loss_coef = coefficient;
  return options;
}

/// A loss that is 0 whatever the scores.
at::Tensor no_loss(const at::Tensor& logits, const at::Tensor&, const util::PluginValues&) {
  return logits.sum() * 0;
}

struct Batch {
  at::Tensor ids, targets;
  explicit Batch(const ModelOptions& options) {
    const at::Tensor rows = testing::token_rows(0, 3, 12, options.vocab_size);
    ids = rows.narrow(1, 0, 12);
    targets = rows.narrow(1, 1, 12).contiguous();
  }
};

TEST(ExpertBalance, IsTheProductOfSharesAndProbabilities) {
  ExpertBalance balance(0.5);
  const at::Tensor p = at::tensor({0.5F, 0.25F, 0.25F, 0.1F, 0.6F, 0.3F}).view({2, 3});
  balance.note(p, {}, at::tensor({1, 2, 1}, at::kLong));
  balance.note(p, {}, at::tensor({2, 2, 0}, at::kLong));
  // R is 4; the experts have 3, 4 and 1 assignments, and 1.2, 1.7 and 1.1 of probabilities.
  const double expected = 3 * (3 * 1.2 + 4 * 1.7 + 1 * 1.1) / 16;
  EXPECT_NEAR(balance.value().item<double>(), expected, 1e-6);
  EXPECT_NEAR(balance.added_to(at::full({}, 2.0)).item<double>(), 2 + 0.5 * expected, 1e-6);
}

// The expected value is that of transformers' load_balancing_loss_func with this attention mask.
TEST(ExpertBalance, LeavesOutPaddingAsTheAttentionMaskOfTransformersDoes) {
  ExpertBalance balance(1, at::tensor({1, 1, 0, 1}).to(at::kBool));
  const at::Tensor logits =
      at::tensor({1.F, 0.F, -1.F, 0.5F, 2.F, 0.F, 3.F, -2.F, 1.F, -1.F, 0.25F, 0.75F}).view({4, 3});
  for (const at::Tensor& each : {logits, logits.flip(1)}) {
    const at::Tensor p = each.softmax(-1), chosen = std::get<1>(at::topk(p, 2));
    balance.note(p, chosen, at::bincount(chosen.flatten(), {}, 3));
  }
  EXPECT_NEAR(balance.value().item<double>(), 2.1607714, 1e-6);
}

TEST(ExpertBalance, PaddingChangesNeitherLossNorGradients) {
  for (const char* family : {"mixtral", "qwen3_moe"}) {
    const ModelOptions options = family_options(family);
    auto model = make_initialized(options), padded = make_initialized(options);
    checkpoint_activations(*padded, {"block"});
    const Batch batch(options);
    const int64_t rows = batch.ids.size(0), tokens = batch.ids.size(1), padding = 5;
    const auto with_padding = [&](const at::Tensor& x, int64_t value) {
      return at::cat({x, at::full({rows, padding}, value, at::kLong)}, 1);
    };
    const at::Tensor is_token = (at::arange(tokens + padding) < tokens).expand({rows, -1});
    const at::Tensor loss = loss_of(*model, batch.ids, batch.targets, balanced(0.3));
    LossOptions how = balanced(0.3);
    how.is_token = is_token;
    const at::Tensor same =
        loss_of(*padded, with_padding(batch.ids, 0), with_padding(batch.targets, -100), how);
    EXPECT_NEAR(same.item<double>(), loss.item<double>(), 1e-6) << family;
    loss.backward();
    same.backward();
    for (const auto& [name, parameter] : parameters_of(*model)) {
      if (!parameter.grad().defined()) continue;
      EXPECT_TRUE(at::allclose(parameters_of(*padded).at(name).grad(), parameter.grad(), 1e-4, 1e-6)) << name;
    }
  }
}

TEST(ExpertBalance, IsPartOfTheLossThatAsksForIt) {
  for (const char* family : {"mixtral", "qwen3_moe"}) {
    const ModelOptions options = family_options(family);
    auto model = make_initialized(options);
    const Batch batch(options);
    const auto loss = [&](const LossOptions& how) {
      return loss_of(*model, batch.ids, batch.targets, how).item<double>();
    };
    const double plain = loss({}), alone = loss({.function = no_loss, .router_aux_loss_coef = 1});
    EXPECT_GT(alone, 1) << family;  // about experts of a token; that many if tokens are spread evenly
    EXPECT_NEAR(loss(balanced(0.1)), plain + 0.1 * alone, 1e-6) << family;
    auto dense = make_initialized(testing::tiny_options());
    EXPECT_EQ(loss_of(*dense, batch.ids, batch.targets, balanced(0.1)).item<double>(),
              loss_of(*dense, batch.ids, batch.targets).item<double>());
  }
}

// By finite differences, along the gradient.
TEST(ExpertBalance, HasTheGradientsOfItsValue) {
  for (const char* family : {"mixtral", "qwen3_moe"}) {
    for (const bool recomputes : {false, true}) {
      const ModelOptions options = family_options(family);
      auto model = make_initialized(options);
      if (recomputes) checkpoint_activations(*model, {"block"});
      const Batch batch(options);
      const LossOptions how{.function = no_loss, .router_aux_loss_coef = 2};
      // As with gradient accumulation and a loss scale.
      (loss_of(*model, batch.ids, batch.targets, how) * 4).backward();
      double slope = 0;
      std::vector<at::Tensor> moved, steps;
      for (const auto& [name, parameter] : parameters_of(*model)) {
        if (!parameter.grad().defined()) continue;
        moved.push_back(parameter);
        steps.push_back(parameter.grad().clone());
        slope += parameter.grad().square().sum().item<double>();
      }
      const auto loss_at = [&](double length) {
        const at::NoGradGuard no_grad;
        for (size_t i = 0; i < moved.size(); ++i) moved[i].add_(steps[i], length);
        const double loss = 4 * loss_of(*model, batch.ids, batch.targets, how).item<double>();
        for (size_t i = 0; i < moved.size(); ++i) moved[i].sub_(steps[i], length);
        return loss;
      };
      EXPECT_GT(slope, 1e-4);
      const double length = 1e-3 / std::sqrt(slope);
      EXPECT_NEAR((loss_at(length) - loss_at(-length)) / (2 * length), slope, 0.02 * slope)
          << family << recomputes;
    }
  }
}

TEST(ExpertBalance, DoesNotChangeWithRecomputation) {
  for (const char* family : {"mixtral", "qwen3_moe"}) {
    for (const char* stage : {"block", "feed_forward", "expert"}) {
      const ModelOptions options = family_options(family);
      auto model = make_initialized(options), other = make_initialized(options);
      checkpoint_activations(*other, {stage});
      const Batch batch(options);
      for (Stage* each : {model.get(), other.get()}) {
        loss_of(*each, batch.ids, batch.targets, balanced(0.3)).backward();
      }
      for (const auto& [name, parameter] : parameters_of(*model)) {
        EXPECT_TRUE(at::equal(parameter.grad(), parameters_of(*other).at(name).grad()))
            << family << stage << name;
      }
    }
  }
}

// ---- adapters

std::shared_ptr<Stage> adapted(const std::string& family, const LoraOptions& lora) {
  ModelOptions options = family_options(family);
  auto model = make_decoder(options, at::kMeta);
  add_lora(*model, lora);
  return model;
}

std::set<std::string> layers_with_adapters(const std::string& family, std::vector<std::string> targets) {
  LoraOptions lora;
  lora.rank = 2;
  lora.targets = std::move(targets);
  auto model = adapted(family, lora);
  std::set<std::string> names;
  for (const auto& [name, parameter] : parameters_of(*model)) {
    const auto of = lora_name(name);
    if (of) names.insert(of->layer.substr(of->layer.find("layers.1") + 9));
  }
  return names;
}

TEST(Experts, CanHaveAdaptersButTheRouterCannot) {
  using ::testing::Contains;
  using ::testing::Not;
  EXPECT_THAT(layers_with_adapters("mixtral", {"*.1.*.w1"}),
              ::testing::ElementsAre("block_sparse_moe.experts.0.w1", "block_sparse_moe.experts.1.w1",
                                     "block_sparse_moe.experts.2.w1", "block_sparse_moe.experts.3.w1"));
  const auto all = layers_with_adapters("mixtral", {"*"});
  EXPECT_THAT(all, Contains("block_sparse_moe.experts.3.w2"));
  EXPECT_THAT(all, Contains("self_attn.q_proj"));
  EXPECT_THAT(all, Not(Contains("block_sparse_moe.gate")));
  EXPECT_THROW(layers_with_adapters("mixtral", {"*.gate"}), util::Error);
}

TEST(Experts, WithoutTokensHaveAdaptersWithZeroGradients) {
  for (const double dropout : {0.0, 0.25}) {
    const ModelOptions options = family_options("mixtral");
    auto experts = make_experts(options);
    starve_expert_1(*experts);
    LoraOptions lora;
    lora.rank = 2;
    lora.dropout = dropout;
    add_lora(*experts, lora);
    {
      const at::NoGradGuard no_grad;
      for (auto& [name, parameter] : parameters_of(*experts)) {
        if (lora_name(name)) parameter.fill_(0.1);
      }
    }
    StageContext context;
    context.dropout = DropoutChoice{.key = 5, .first_row = 2};
    const at::Tensor x = inputs(20);
    const at::Tensor result = experts->forward(x, context);
    EXPECT_TRUE(at::equal(experts->forward(x, context), result));
    context.dropout->first_row = 4;
    EXPECT_EQ(at::equal(experts->forward(x, context), result), dropout == 0);
    result.sum().backward();
    for (const auto& [name, parameter] : parameters_of(*experts)) {
      EXPECT_EQ(parameter.grad().defined(), lora_name(name).has_value()) << name;
      if (!lora_name(name) || !(name.starts_with("experts.0.") || name.starts_with("experts.1."))) continue;
      const bool is_zero = parameter.grad().abs().max().item<float>() == 0;
      EXPECT_EQ(is_zero, name.starts_with("experts.1.")) << name;
    }
  }
}

}  // namespace
}  // namespace fsdp::nn
