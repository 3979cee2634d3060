#include "model/nn/recompute.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "base/tensor/storage.h"
#include "base/util/error.h"
#include "base/util/text.h"
#include "support/counting_allocator.h"
#include "support/tiny_models.h"

namespace fsdp::nn {
namespace {

using testing::make_initialized;
using testing::tiny_options;

/// Two matrix products with a tanh and, on demand, dropout between; remembers what it computed.
class WatchedStage final : public Stage {
 public:
  explicit WatchedStage(int64_t size, double dropout = 0) : dropout_(dropout) {
    at::Tensor values = at::arange(size * size, at::kFloat).view({size, size});
    first_ = register_parameter("first", values.sin());
    second_ = register_parameter("second", values.cos());
  }
  std::string type_name() const override { return "block"; }

  at::Tensor& first() { return first_; }
  at::Tensor& second() { return second_; }
  int computed = 0;
  bool throws = false;
  std::vector<c10::weak_intrusive_ptr<at::TensorImpl>> intermediates;

 protected:
  at::Tensor compute(const at::Tensor& x, const StageContext& context) override {
    ++computed;
    if (throws) throw std::runtime_error("thrown by a test");
    at::Tensor hidden = at::matmul(x, first_);
    if (dropout_ > 0) hidden = at::dropout(hidden, dropout_, /*train=*/true);
    if (context.rotary_cos.defined()) hidden = hidden * context.rotary_cos;
    at::Tensor activated = hidden.tanh();
    for (const at::Tensor& tensor : {hidden, activated}) intermediates.emplace_back(tensor.getIntrusivePtr());
    return at::matmul(activated, second_) + x;
  }

 private:
  double dropout_;
  at::Tensor first_, second_;
};

class CountingHook final : public StageHook {
 public:
  at::Tensor around(Stage&, const at::Tensor& input, const Next& next) override {
    recording.push_back(at::GradMode::is_enabled());
    return next(input);
  }
  std::vector<bool> recording;  ///< grad mode at each call
};

std::shared_ptr<WatchedStage> make_stage(bool recomputed, double dropout = 0) {
  auto stage = std::make_shared<WatchedStage>(4, dropout);
  if (recomputed) stage->attach(std::make_shared<Recompute>());
  return stage;
}

at::Tensor some_input() { return (at::arange(12, at::kFloat) * 0.3).sin().view({3, 4}); }

at::Tensor random_state() { return at::detail::getDefaultCPUGenerator().get_state(); }

void expect_usage_error(const std::function<void()>& action, const std::string& part) {
  try {
    action();
    ADD_FAILURE() << "not refused: " << part;
  } catch (const util::Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
  }
}

TEST(Recompute, GivesTheSameLossAndGradientsBitForBit) {
  for (const char* architecture : {"llama", "gpt2"}) {
    auto options = tiny_options(architecture);
    auto plain = make_initialized(options), recomputed = make_initialized(options);
    checkpoint_activations(*recomputed, {"block"});
    // Two micro-batches: the second accumulates.
    for (int64_t row : {0, 2}) {
      at::Tensor rows = testing::token_rows(row, 2, 8, options.vocab_size);
      at::Tensor expected = testing::loss_of(*plain, rows), found = testing::loss_of(*recomputed, rows);
      EXPECT_TRUE(found.equal(expected));
      expected.backward();
      found.backward();
    }
    auto expected = plain->named_parameters();
    for (const auto& parameter : recomputed->named_parameters()) {
      EXPECT_TRUE(parameter.value().grad().equal(expected[parameter.key()].grad())) << parameter.key();
    }
  }
}

TEST(SelectiveRecomputation, GivesTheSameLossAndGradientsBitForBit) {
  for (const std::string& family : testing::family_names()) {
    nn::ModelOptions options = testing::family_options(family);
    options.matmul = nn::MatmulChoice::kOneDnn;
    auto plain = make_initialized(options);
    const auto all = outermost_stages(*plain, {"block"}).front().second->recomputable();
    ASSERT_EQ(all.size(), 6u);
    std::vector<std::vector<std::string>> ways{all};
    for (const std::string& operation : all) ways.push_back({operation});
    const at::Tensor rows = testing::token_rows(0, 2, 8, options.vocab_size);
    const at::Tensor expected = testing::loss_of(*plain, rows);
    expected.backward();
    for (const std::vector<std::string>& operations : ways) {
      SCOPED_TRACE(family + ": " + util::join(operations, ", "));
      auto selective = make_initialized(options);
      CheckpointingOptions checkpointing{.mode = RecomputeMode::kSelective,
                                         .chosen = std::vector<StageRecomputation>()};
      for (const auto& stage : outermost_stages(*selective, {"block"})) {
        checkpointing.chosen->push_back({stage.first, operations});
      }
      apply_checkpointing(*selective, checkpointing);
      const at::Tensor loss = testing::loss_of(*selective, rows);
      EXPECT_TRUE(loss.equal(expected));
      loss.backward();
      auto gradients = plain->named_parameters();
      for (const auto& parameter : selective->named_parameters()) {
        EXPECT_TRUE(parameter.value().grad().equal(gradients[parameter.key()].grad())) << parameter.key();
      }
    }
  }
}

TEST(Recompute, ComputesOnceInForwardAndOnceInBackward) {
  auto stage = make_stage(true);
  at::Tensor input = some_input().requires_grad_();
  at::Tensor output = stage->forward(input);
  EXPECT_EQ(stage->computed, 1);
  output.sum().backward();
  EXPECT_EQ(stage->computed, 2);
  auto plain = make_stage(false);
  at::Tensor same_input = some_input().requires_grad_();
  plain->forward(same_input).sum().backward();
  EXPECT_TRUE(input.grad().equal(same_input.grad()));
  EXPECT_TRUE(stage->first().grad().equal(plain->first().grad()));
}

TEST(Recompute, KeepsNoIntermediateBetweenForwardAndBackward) {
  for (bool recomputed : {false, true}) {
    auto stage = make_stage(recomputed);
    at::Tensor output = stage->forward(some_input().requires_grad_());
    ASSERT_EQ(stage->intermediates.size(), 2u);
    // tanh keeps its result for backward.
    EXPECT_EQ(stage->intermediates[1].expired(), recomputed);
    EXPECT_TRUE(stage->intermediates[0].expired());
    output.sum().backward();
    for (const auto& tensor : stage->intermediates) EXPECT_TRUE(tensor.expired());
  }
}

TEST(Recompute, HoldsOneInputAStageInPlaceOfAllActivations) {
  auto options = tiny_options();
  options.hidden_size = 32;
  options.intermediate_size = 64;
  options.num_hidden_layers = 8;
  const int64_t rows = 4, length = 16, input_bytes = rows * length * options.hidden_size * 4;
  auto held_by_blocks = [&](bool recomputed) {
    auto model = make_initialized(options);
    if (recomputed) checkpoint_activations(*model, {"block"});
    at::Tensor ids = testing::token_rows(0, rows, length - 1, options.vocab_size);
    model->forward(ids);  // makes what is kept between calls
    testing::CountingAllocator::Scope counter;
    at::Tensor logits = model->forward(ids);
    return counter.live_bytes();
  };
  int64_t plain = held_by_blocks(false), recomputed = held_by_blocks(true);
  // Each block keeps its input; in addition there are the logits and the final norm.
  EXPECT_GE(recomputed, options.num_hidden_layers * input_bytes);
  EXPECT_LE(recomputed, (options.num_hidden_layers + 4) * input_bytes);
  EXPECT_GE(plain, options.num_hidden_layers * 8 * input_bytes);
}

TEST(Recompute, AccumulatesIntoGradientsThatAreViewsOfAFlatBuffer) {
  auto stage = make_stage(true), plain = make_stage(false);
  at::Tensor flat = at::full({32}, 0.5), expected = at::full({32}, 0.5);
  for (auto [target, buffer] : {std::pair{stage, flat}, {plain, expected}}) {
    target->first().mutable_grad() = buffer.narrow(0, 0, 16).view({4, 4});
    target->second().mutable_grad() = buffer.narrow(0, 16, 16).view({4, 4});
    target->forward(some_input()).square().sum().backward();
  }
  EXPECT_EQ(stage->first().grad().data_ptr(), flat.data_ptr());
  EXPECT_TRUE(flat.equal(expected));
  EXPECT_FALSE(flat.eq(0.5).any().item<bool>());
}

TEST(Recompute, TrainsParametersBehindAnInputThatNeedsNoGradient) {
  auto stage = make_stage(true), plain = make_stage(false);
  at::Tensor output = stage->forward(some_input());
  ASSERT_TRUE(output.requires_grad());
  output.sum().backward();
  plain->forward(some_input()).sum().backward();
  EXPECT_TRUE(stage->first().grad().equal(plain->first().grad()));

  // The first block after a frozen embedding.
  auto options = tiny_options();
  auto frozen = make_initialized(options), reference = make_initialized(options);
  checkpoint_activations(*frozen, {"block"});
  for (auto& model : {frozen, reference}) {
    model->named_parameters()["model.embed_tokens.weight"].set_requires_grad(false);
    testing::loss_of(*model, testing::token_rows(0, 2, 8, options.vocab_size)).backward();
  }
  const char* name = "model.layers.0.self_attn.q_proj.weight";
  EXPECT_TRUE(frozen->named_parameters()[name].grad().equal(reference->named_parameters()[name].grad()));
}

TEST(Recompute, PassesGradientsThroughAFrozenStage) {
  auto stage = make_stage(true), plain = make_stage(false);
  at::Tensor input = some_input().requires_grad_(), same_input = some_input().requires_grad_();
  for (auto [target, x] : {std::pair{stage, input}, {plain, same_input}}) {
    for (at::Tensor& parameter : target->parameters()) parameter.set_requires_grad(false);
    target->forward(x).sum().backward();
  }
  EXPECT_TRUE(input.grad().equal(same_input.grad()));
  EXPECT_FALSE(stage->first().grad().defined());
}

TEST(Recompute, DoesNothingWhereNothingNeedsAGradient) {
  auto stage = make_stage(true);
  {
    at::NoGradGuard evaluation;
    EXPECT_FALSE(stage->forward(some_input()).requires_grad());
  }
  for (at::Tensor& parameter : stage->parameters()) parameter.set_requires_grad(false);
  EXPECT_FALSE(stage->forward(some_input()).requires_grad());
  EXPECT_EQ(stage->computed, 2);
}

TEST(Recompute, DrawsTheSameRandomNumbersAgain) {
  auto stage = make_stage(true, /*dropout=*/0.5), plain = make_stage(false, /*dropout=*/0.5);
  at::Tensor states[2], drawn[2];
  for (auto [i, target] : {std::pair{0, stage}, {1, plain}}) {
    at::manual_seed(11);
    at::Tensor output = target->forward(some_input());
    drawn[i] = at::rand({5});  // what lies between forward and backward
    output.sum().backward();
    states[i] = random_state();
  }
  EXPECT_TRUE(stage->first().grad().equal(plain->first().grad()));
  EXPECT_TRUE(drawn[0].equal(drawn[1]));
  EXPECT_TRUE(states[0].equal(states[1]));
  // Without forward's generator state, other elements would be dropped.
  auto other = make_stage(false, /*dropout=*/0.5);
  at::manual_seed(12);
  other->forward(some_input()).sum().backward();
  EXPECT_FALSE(other->first().grad().equal(plain->first().grad()));
}

TEST(Recompute, BearsParametersThatAreFreedBetweenForwardAndBackward) {
  auto stage = make_stage(true), plain = make_stage(false);
  at::Tensor flat = at::cat({stage->first().detach().flatten(), stage->second().detach().flatten()});
  at::Tensor backup = flat.clone();
  stage->first().set_data(flat.narrow(0, 0, 16).view({4, 4}));
  stage->second().set_data(flat.narrow(0, 16, 16).view({4, 4}));
  at::Tensor input = some_input().requires_grad_(), same_input = some_input().requires_grad_();
  at::Tensor output = stage->forward(input);
  util::free_storage(flat);
  util::restore_storage(flat, 32 * 4);
  flat.copy_(backup);
  output.sum().backward();
  plain->forward(same_input).sum().backward();
  EXPECT_TRUE(input.grad().equal(same_input.grad()));
  EXPECT_TRUE(stage->second().grad().equal(plain->second().grad()));
}

TEST(Recompute, RunsInnerHooksAgainAndOuterOnesOnce) {
  auto options = tiny_options();
  auto model = make_initialized(options), plain = make_initialized(options);
  auto outer = std::make_shared<CountingHook>(), inner = std::make_shared<CountingHook>(),
       nested = std::make_shared<CountingHook>();
  auto stage_of = [&](const std::string& path) {
    return std::dynamic_pointer_cast<Stage>(model->named_modules()[path]);
  };
  stage_of("model.layers.1")->attach(outer);
  checkpoint_activations(*model, {"block"});
  stage_of("model.layers.1")->attach(inner);
  stage_of("model.layers.1.mlp")->attach(nested);
  at::Tensor rows = testing::token_rows(0, 2, 8, options.vocab_size);
  testing::loss_of(*model, rows).backward();
  EXPECT_EQ(outer->recording, (std::vector<bool>{true}));
  EXPECT_EQ(inner->recording, (std::vector<bool>{false, true}));
  EXPECT_EQ(nested->recording, (std::vector<bool>{false, true}));

  // Nested recomputation gives the same gradients.
  stage_of("model.layers.1.mlp")->attach(std::make_shared<Recompute>());
  model->zero_grad();
  testing::loss_of(*model, rows).backward();
  testing::loss_of(*plain, rows).backward();
  auto expected = plain->named_parameters();
  for (const auto& parameter : model->named_parameters()) {
    EXPECT_TRUE(parameter.value().grad().equal(expected[parameter.key()].grad())) << parameter.key();
  }
}

TEST(Recompute, KeepsTheContextAndTheStageUntilBackward) {
  auto stage = make_stage(true), plain = make_stage(false);
  at::Tensor first = stage->first(), expected = plain->first();
  at::Tensor scale = at::arange(4, at::kFloat);
  plain->forward(some_input(), {scale, {}}).sum().backward();
  std::weak_ptr<Stage> alive = stage;
  at::Tensor output = stage->forward(some_input(), {scale.clone(), {}});
  stage.reset();
  EXPECT_FALSE(alive.expired());
  output.sum().backward();
  EXPECT_TRUE(first.grad().equal(expected.grad()));
  EXPECT_TRUE(alive.expired());
}

TEST(Recompute, MayGoBackwardTwiceOnlyWhenTheGraphIsRetained) {
  auto stage = make_stage(true);
  at::Tensor loss = stage->forward(some_input()).sum();
  loss.backward({}, /*retain_graph=*/true);
  at::Tensor once = stage->first().grad().clone();
  loss.backward();
  EXPECT_TRUE(stage->first().grad().equal(once * 2));
  EXPECT_THROW(loss.backward(), c10::Error);
}

TEST(Recompute, RefusesWhatItCannotDo) {
  auto stage = make_stage(true);
  at::Tensor input = some_input().requires_grad_();
  expect_usage_error(
      [&] { stage->forward(input).sum().backward({}, /*retain_graph=*/true, /*create_graph=*/true); },
      "first derivatives only");
  expect_usage_error([&] { torch::autograd::grad({stage->forward(input).sum()}, {input}); },
                     "restricted to certain inputs");
  at::Tensor changed = some_input();
  at::Tensor output = stage->forward(changed);
  changed.add_(1);
  EXPECT_THROW(output.sum().backward(), c10::Error);
}

TEST(Recompute, LetsExceptionsThroughAndLeavesTheRandomNumbersAlone) {
  auto stage = make_stage(true, /*dropout=*/0.5);
  at::Tensor output = stage->forward(some_input());
  stage->throws = true;
  at::Tensor before = random_state();
  EXPECT_THROW(output.sum().backward(), std::runtime_error);
  EXPECT_TRUE(random_state().equal(before));
  EXPECT_TRUE(at::GradMode::is_enabled());
}

TEST(RecomputeOfRanges, GivesCloseLossesAndGradients) {
  for (const char* name : {"llama", "gpt2", "gemma3_text", "phi3"}) {
    SCOPED_TRACE(name);
    const ModelOptions options = testing::family_options(name);
    const auto plain = make_initialized(options), in_ranges = make_initialized(options);
    apply_checkpointing(*in_ranges, {.mode = RecomputeMode::kFull, .feed_forward_tokens = 3});
    for (const int64_t rows : {1, 2}) {
      const at::Tensor tokens = testing::token_rows(0, rows, 8, options.vocab_size);
      const at::Tensor expected = testing::loss_of(*plain, tokens),
                       found = testing::loss_of(*in_ranges, tokens);
      EXPECT_TRUE(found.allclose(expected, 1e-6));
      expected.backward();
      found.backward();
    }
    auto expected = plain->named_parameters();
    for (const auto& parameter : in_ranges->named_parameters()) {
      EXPECT_TRUE(parameter.value().grad().allclose(expected[parameter.key()].grad(), 1e-4, 1e-6))
          << parameter.key();
    }
  }
}

TEST(RecomputeOfRanges, ComputesSoManyTokensAtATime) {
  auto stage = std::make_shared<WatchedStage>(4);
  stage->attach(std::make_shared<Recompute>(3));
  const at::Tensor input = at::ones({2, 8, 4}).requires_grad_();
  at::Tensor output = stage->forward(input);
  EXPECT_EQ(stage->computed, 3);
  output.sum().backward();
  EXPECT_EQ(stage->computed, 6);
  auto plain = std::make_shared<WatchedStage>(4);
  const at::Tensor same = at::ones({2, 8, 4}).requires_grad_();
  plain->forward(same).sum().backward();
  EXPECT_TRUE(input.grad().allclose(same.grad()));
  EXPECT_TRUE(stage->first().grad().allclose(plain->first().grad()));
  at::Tensor short_rows = at::ones({2, 3, 4}).requires_grad_();
  stage->forward(short_rows);
  EXPECT_EQ(stage->computed, 7) << "one range";
}

TEST(RecomputeOfRanges, TellsTheStageWhereItsTokensAre) {
  class Places final : public Stage {
   public:
    std::string type_name() const override { return "places"; }
    std::vector<std::pair<int64_t, int64_t>> seen;  ///< first token of a whole row, and number of tokens

   protected:
    at::Tensor compute(const at::Tensor& x, const StageContext& context) override {
      EXPECT_EQ(context.tokens.count, 1);
      seen.emplace_back(context.tokens.begins[0], x.size(1));
      return 2 * x;
    }
  };
  auto stage = std::make_shared<Places>();
  stage->attach(std::make_shared<Recompute>(3));
  StageContext context;
  context.tokens = {.count = 2, .begins = {4, 20}};
  stage->forward(at::ones({1, 8, 4}).requires_grad_(), context);
  EXPECT_EQ(stage->seen, (std::vector<std::pair<int64_t, int64_t>>{{4, 3}, {7, 1}, {20, 3}, {23, 1}}));
}

TEST(RecomputeOfRanges, HoldsTheActivationsOfOneRange) {
  ModelOptions options = testing::tiny_options();
  options.intermediate_size = 4096;
  options.num_hidden_layers = 1;
  const at::Tensor tokens = testing::token_rows(0, 8, 16, options.vocab_size);
  const auto peak = [&](int64_t at_a_time) {
    const auto model = make_initialized(options);
    apply_checkpointing(*model, {.mode = RecomputeMode::kFull, .feed_forward_tokens = at_a_time});
    testing::loss_of(*model, tokens).backward();  // gradients exist from now on
    testing::CountingAllocator::Scope counter;
    testing::loss_of(*model, tokens).backward();
    return counter.peak_bytes();
  };
  // Gate, up and their gradients are 2 MiB each of all tokens, the weights 192 KiB each.
  EXPECT_LT(peak(2), peak(0) / 2);
}

TEST(CheckpointActivations, AttachesToTheOutermostStagesOfTheTypes) {
  auto options = tiny_options();
  auto model = make_initialized(options);
  checkpoint_activations(*model, {"feed_forward", "block"});
  auto inner = std::make_shared<CountingHook>();
  for (const auto& module : model->modules()) {
    auto stage = std::dynamic_pointer_cast<Stage>(module);
    if (stage && stage->type_name() == "feed_forward") stage->attach(inner);
  }
  testing::loss_of(*model, testing::token_rows(0, 1, 4, options.vocab_size)).backward();
  // If feed-forward stages were recomputed separately from their blocks, each would run three times.
  EXPECT_EQ(inner->recording.size(), 2u * 3);
}

TEST(CheckpointActivations, NamesTheTypesThatThereAre) {
  auto model = make_initialized(tiny_options());
  expect_usage_error(
      [&] { checkpoint_activations(*model, {"blok"}); },
      "expected one of: attention, block, embedding, feed_forward, head; did you mean \"block\"?");
  expect_usage_error(
      [&] {
        checkpoint_activations(*model, {"block", "llama"});
      },
      "\"llama\", the whole model");
  expect_usage_error([&] { checkpoint_activations(*model, {}); }, "but is empty; add one");
}

TEST(ApplyCheckpointing, FollowsTheMode) {
  auto computed_with = [](const CheckpointingOptions& options) {
    testing::ChainStage chain(2, 3);
    apply_checkpointing(chain, options);
    auto inner = std::make_shared<CountingHook>();
    chain.layer(0).attach(inner);
    chain.forward(at::ones({1, 3})).sum().backward();
    return inner->recording.size();
  };
  EXPECT_EQ(computed_with({}), 1u);
  EXPECT_EQ(computed_with({"full", {"block"}}), 2u);
  expect_usage_error([&] { computed_with({"some", {"block"}}); }, "expected one of none, selective, full");
}

}  // namespace
}  // namespace fsdp::nn
