#include "model/nn/parallelize.h"

#include <gmock/gmock.h>

#include "base/tensor/seeded_random.h"
#include "comm/fake/fake_communicator.h"
#include "model/nn/layers.h"
#include "model/nn/parameter.h"
#include "model/nn/stage_graphs.h"
#include "model/parallel/step_collectives.h"
#include "support/counting_allocator.h"
#include "support/parallel_models.h"

namespace fsdp::nn {
namespace {

using ::testing::ElementsAre;

constexpr int64_t kRows = 3, kTokens = 8;

ModelOptions small_options(const std::string& architecture) {
  ModelOptions options = testing::tiny_options(architecture);
  options.vocab_size = 51;  // no rank count divides it
  options.hidden_size = 32;
  options.intermediate_size = 48;
  options.num_hidden_layers = 2;
  options.num_attention_heads = 4;
  options.num_key_value_heads = architecture == "llama" ? 2 : 4;
  return options;
}

ParallelPlan plan_of(const ModelOptions& options, bool sequence_parallel = true) {
  return model_kind(options.architecture).plan(options, {.sequence_parallel = sequence_parallel});
}

testing::ModelRun training(const LossOptions& loss = {}, bool recomputes = false) {
  return [=](Stage& model) {
    if (recomputes) checkpoint_activations(model, {"block"});
    const at::Tensor tokens = testing::token_rows(20, kRows, kTokens, 51);
    at::Tensor targets = tokens.narrow(1, 1, kTokens).contiguous();
    targets[1][2] = kernels::kIgnored;
    at::Tensor result = loss_of(model, tokens.narrow(1, 0, kTokens), targets, loss);
    result.backward();
    return result.detach();
  };
}

void expect_as_whole(const ModelOptions& options, const testing::ModelRun& run = training(),
                     const testing::Tolerance& tolerance = {}) {
  for (int world : {2, 4}) {
    for (bool sequence_parallel : {true, false}) {
      SCOPED_TRACE(concat(options.architecture, " ", world, sequence_parallel ? " sequence" : ""));
      testing::expect_as_whole([&] { return testing::make_initialized(options); },
                               plan_of(options, sequence_parallel), world, run, tolerance);
    }
  }
}

TEST(ParallelModel, OfBothFamiliesIsTheWhole) {
  for (const char* architecture : {"llama", "gpt2"}) expect_as_whole(small_options(architecture));
}

TEST(ParallelModel, OfTheOtherFamiliesIsTheWhole) {
  for (const std::string& family : testing::family_names()) {
    ModelOptions options = testing::family_options(family);
    if (options.architecture == "olmo2" || options.num_experts > 0) continue;  // refused
    options.vocab_size = 51;
    options.num_attention_heads = 4;
    options.num_key_value_heads = family == "gpt2" || family == "phi3" || family == "gpt_neox" ? 4 : 2;
    if (family == "gpt_neox") options.hidden_size = 32;
    testing::Tolerance tolerance;
    if (family == "exaone4") tolerance.gradient = 3e-6;  // its norms follow what is rounded
    expect_as_whole(options, training(), tolerance);
  }
}

TEST(ParallelModel, IsRefusedWhereHeadsAreNotSeparate) {
  for (const auto& [family, reason] :
       {std::pair("olmo2", "because its norms of queries and keys are of all heads together"),
        std::pair("mixtral", "because each of its experts is computed by one process"),
        std::pair("phi3",
                  "because one weight has its queries, keys and values, of different numbers of heads")}) {
    try {
      plan_of(testing::family_options(family));
      ADD_FAILURE() << family;
    } catch (const util::Error& error) {
      EXPECT_THAT(error.what(), ::testing::HasSubstr(reason));
    }
  }
}

TEST(ParallelModel, MayTieItsEmbeddings) {
  for (const char* architecture : {"llama", "gpt2"}) {
    ModelOptions options = small_options(architecture);
    options.tie_word_embeddings = true;
    expect_as_whole(options);
  }
}

TEST(ParallelModel, MayHaveBiasesAndOtherWidths) {
  ModelOptions options = small_options("llama");
  options.qkv_bias = true;  // Qwen2
  options.head_dim = 6;
  expect_as_whole(options);
  options.qkv_bias = false;
  options.attention_bias = options.mlp_bias = true;
  options.hidden_act = Activation::kGeluTanh;
  expect_as_whole(options);
}

TEST(ParallelModel, RepeatsKeysWhereThereAreFewerThanRanks) {
  ModelOptions options = small_options("llama");
  options.num_attention_heads = 8;
  options.num_key_value_heads = 1;
  options.qkv_bias = true;
  expect_as_whole(options);
}

TEST(ParallelModel, DropsWhatTheWholeDrops) {
  for (const char* architecture : {"llama", "gpt2"}) {
    ModelOptions options = small_options(architecture);
    options.embedding_dropout = 0.1;
    options.attention_dropout = 0.2;
    options.hidden_dropout = 0.3;
    expect_as_whole(options, training({.dropout = DropoutChoice{5, 20}}));
  }
}

TEST(ParallelModel, KeepsDocumentsApart) {
  const auto documents = std::make_shared<const DocumentStarts>(DocumentStarts{{0, 3}, {0}, {0, 1, 6}});
  for (const char* architecture : {"llama", "gpt2"}) {
    ModelOptions options = small_options(architecture);
    options.attention_dropout = 0.2;
    expect_as_whole(options, training({.dropout = DropoutChoice{5, 20}, .documents = documents}));
  }
}

TEST(ParallelModel, RecomputesBlocks) {
  for (const char* architecture : {"llama", "gpt2"}) {
    ModelOptions options = small_options(architecture);
    options.hidden_dropout = 0.3;
    expect_as_whole(options, training({.dropout = DropoutChoice{5, 20}}, /*recomputes=*/true));
  }
}

TEST(ParallelModel, TakesTheTermsOfTheLoss) {
  for (const char* architecture : {"llama", "gpt2"}) {
    expect_as_whole(small_options(architecture),
                    training({.terms = {.label_smoothing = 0.1, .z_loss = 0.01}}));
  }
}

TEST(ParallelModel, MayBeComposedOfLibtorchsOperations) {
  for (const char* architecture : {"llama", "gpt2"}) {
    ModelOptions options = small_options(architecture);
    options.fused_kernels = false;
    expect_as_whole(options);
  }
}

TEST(ParallelModel, GivesAllScoresToALossOfOnesOwn) {
  const LossFunction function = [](const at::Tensor& logits, const at::Tensor& targets, const auto&) {
    return next_token_loss(logits, targets) * 2;
  };
  expect_as_whole(small_options("llama"), training({.function = function}));
}

/// A model whose parameters have the type.
testing::MakeModel of_type(const ModelOptions& options, at::ScalarType type) {
  return [=] {
    const auto model = testing::make_initialized(options);
    for (const at::Tensor& parameter : model->parameters()) parameter.set_data(parameter.to(type));
    return model;
  };
}

TEST(ParallelModel, IsNearTheWholeInBFloat16) {
  for (const char* architecture : {"llama", "gpt2"}) {
    const ModelOptions options = small_options(architecture);
    const auto make = of_type(options, at::kBFloat16), exact = of_type(options, at::kFloat);
    const auto gradients = [](const testing::MakeModel& make_model) {
      const auto model = make_model();
      training()(*model);
      return testing::gradients_of(*model);
    };
    const auto rounded = gradients(make), expected = gradients(exact);
    double rounding = 0;  // of the whole
    for (const auto& [name, gradient] : expected) {
      rounding = std::max(rounding,
                          testing::norm_of(rounded.at(name) - gradient) / testing::scale_of(expected, name));
    }
    EXPECT_LE(rounding, 0.1);
    for (bool sequence_parallel : {true, false}) {
      testing::expect_as_whole(make, plan_of(options, sequence_parallel), 4, training(),
                               {.loss = 2e-2, .gradient = std::max(2e-2, 1.5 * rounding)});
    }
  }
}

TEST(ParallelModel, CommunicatesAsTheFormulaSays) {
  for (const char* architecture : {"llama", "gpt2"}) {
    const ModelOptions options = small_options(architecture);
    for (int world : {2, 4}) {
      for (bool sequence_parallel : {true, false}) {
        for (bool recomputes : {true, false}) {
          std::vector<testing::CountingCommunicator::Call> calls;
          testing::expect_as_whole([&] { return testing::make_initialized(options); },
                                   plan_of(options, sequence_parallel), world, training({}, recomputes), {},
                                   &calls);
          parallel::StepCollectives found;
          for (const auto& call : calls) {
            auto& sum = call.op == "all_gather"       ? found.all_gather
                        : call.op == "reduce_scatter" ? found.reduce_scatter
                                                      : found.all_reduce;
            ++sum.calls;
            sum.bytes += call.numel * static_cast<int64_t>(c10::elementSize(call.dtype));
          }
          const parallel::StepCollectives expected =
              parallel::step_collectives({.ranks = world,
                                          .layers = options.num_hidden_layers,
                                          .hidden = options.hidden_size,
                                          .rows = kRows,
                                          .tokens = kTokens,
                                          .sequence_parallel = sequence_parallel,
                                          .recomputes_blocks = recomputes});
          EXPECT_EQ(found.all_gather.calls, expected.all_gather.calls);
          EXPECT_EQ(found.all_gather.bytes, expected.all_gather.bytes);
          EXPECT_EQ(found.reduce_scatter, expected.reduce_scatter);
          EXPECT_EQ(found.all_reduce, expected.all_reduce);
        }
      }
    }
  }
}

std::shared_ptr<comm::Communicator> fake_ranks(int world) {
  return std::make_shared<comm::FakeCommunicator>(world);
}

TEST(ParallelModel, SaysWhichPartOfAParameterARankHas) {
  ModelOptions options = small_options("llama");
  options.qkv_bias = true;
  const auto find = [&](const std::vector<ParameterPart>& parts, const std::string& name) {
    return *std::find_if(parts.begin(), parts.end(), [&](const auto& part) { return part.name == name; });
  };
  {
    const auto model = make_decoder(options, at::kMeta);
    const auto parts = parameter_parts(*model, plan_of(options), 4, 3);
    ASSERT_EQ(parts.size(), model->parameters().size());
    const auto q = find(parts, "model.layers.0.self_attn.q_proj.weight");
    EXPECT_EQ(q.range, (util::Rectangle{.begin = 24 * 32, .end = 32 * 32}));
    EXPECT_THAT(q.shape, ElementsAre(8, 32));
    EXPECT_EQ(std::pair(q.first_holder, q.holders), std::pair(int64_t{3}, int64_t{1}));
    EXPECT_FALSE(q.shares_gradient);
    const auto k = find(parts, "model.layers.0.self_attn.k_proj.bias");  // 2 heads for 4 ranks
    EXPECT_EQ(k.range, (util::Rectangle{.begin = 8, .end = 16}));
    EXPECT_EQ(std::pair(k.first_holder, k.holders), std::pair(int64_t{2}, int64_t{2}));
    EXPECT_TRUE(k.shares_gradient);
    const auto o = find(parts, "model.layers.0.self_attn.o_proj.weight");
    EXPECT_EQ(o.range, (util::Rectangle{.begin = 24, .end = 32, .rows = 32}));
    const auto table = find(parts, "model.embed_tokens.weight");  // 13, 13, 13, 12 rows
    EXPECT_EQ(table.range, (util::Rectangle{.begin = 39 * 32, .end = 51 * 32}));
    const auto norm = find(parts, "model.norm.weight");
    EXPECT_TRUE(norm.is_whole() && norm.shares_gradient);
    EXPECT_EQ(norm.holders, 4);
    const auto whole = find(parameter_parts(*model, plan_of(options, false), 4, 3), "model.norm.weight");
    EXPECT_TRUE(whole.is_whole() && !whole.shares_gradient);
  }
  options = small_options("gpt2");
  const auto model = make_decoder(options, at::kMeta);
  const auto parts = parameter_parts(*model, plan_of(options), 2, 1);
  const auto qkv = find(parts, "transformer.h.0.attn.c_attn.weight");  // [32, 96]
  EXPECT_EQ(qkv.range, (util::Rectangle{.begin = 16, .end = 32, .rows = 32 * 3}));
  EXPECT_THAT(qkv.shape, ElementsAre(32, 48));
  EXPECT_EQ(find(parts, "transformer.h.0.attn.c_attn.bias").range,
            (util::Rectangle{.begin = 16, .end = 32, .rows = 3}));
  const auto bias = find(parts, "transformer.h.0.mlp.c_proj.bias");
  EXPECT_TRUE(bias.is_whole() && bias.shares_gradient);
}

TEST(ParallelModel, OnMetaHasTheCutShapes) {
  for (const char* architecture : {"llama", "gpt2"}) {
    ModelOptions options = small_options(architecture);
    options.tie_word_embeddings = true;
    const auto model = make_decoder(options, at::kMeta);
    const auto parts = parallelize(*model, plan_of(options), fake_ranks(4));
    const auto parameters = model->named_parameters();
    for (const ParameterPart& part : parts) {
      EXPECT_EQ(parameters[part.name].sizes(), at::IntArrayRef(part.shape)) << part.name;
    }
    EXPECT_TRUE(parameters["lm_head.weight"].is_same(parameters[parts.front().name])) << parts.front().name;
  }
}

TEST(ParallelModel, CutsActivationsBetweenItsRegions) {
  class Watch final : public CallHook {
   public:
    explicit Watch(std::vector<at::Tensor>& seen) : seen_(seen) {}
    std::shared_ptr<void> before(const CallTensors& inputs) override {
      seen_.push_back(*inputs.front());
      return nullptr;
    }
    void after(const CallTensors& outputs) override { seen_.push_back(*outputs.front()); }

   private:
    std::vector<at::Tensor>& seen_;
  };
  const ModelOptions options = small_options("llama");
  const auto model = testing::make_initialized(options);
  parallelize(*model, plan_of(options), fake_ranks(4));
  std::vector<at::Tensor> seen;
  for (const auto& [name, block] : outermost_stages(*model, {"block"}))
    block->attach(std::make_shared<Watch>(seen));
  training()(*model);
  ASSERT_EQ(std::ssize(seen), 2 * options.num_hidden_layers);
  for (const at::Tensor& x : seen)
    EXPECT_EQ(x.sizes(), at::IntArrayRef({kRows, kTokens / 4, options.hidden_size}));
}

TEST(ParallelModel, NeverHoldsAllLogits) {
  ModelOptions options = small_options("llama");
  options.vocab_size = 40'000;
  const auto model = testing::make_initialized(options);
  parallelize(*model, plan_of(options), fake_ranks(4));
  const at::Tensor tokens = testing::token_rows(0, 8, 16, options.vocab_size);
  const testing::CountingAllocator::Scope memory;
  loss_of(*model, tokens.narrow(1, 0, 16), tokens.narrow(1, 1, 16).contiguous()).backward();
  const int64_t logits = 8 * 16 * options.vocab_size * 4;
  EXPECT_GE(memory.peak_bytes(), logits / 4);
  EXPECT_LE(memory.peak_bytes(), logits * 3 / 4);
}

TEST(ParallelModel, IsRecordedInNoGraph) {
  const ModelOptions options = small_options("llama");
  const auto model = testing::make_initialized(options);
  parallelize(*model, plan_of(options), fake_ranks(2));
  EXPECT_THROW(graph_stages(*model, {"block"}, nullptr), util::Error);
}

TEST(ParallelModel, OfOneRankIsTheModelItself) {
  const ModelOptions options = small_options("llama");
  const auto model = testing::make_initialized(options);
  parallelize(*model, plan_of(options), fake_ranks(1));
  EXPECT_FALSE(is_parallel(*model));
}

TEST(ParallelModel, DoesNotGenerate) {
  const ModelOptions options = small_options("llama");
  const auto model = testing::make_initialized(options);
  parallelize(*model, plan_of(options), fake_ranks(2));
  StageContext context;
  context.only_last = true;
  EXPECT_THROW(model->forward(at::zeros({1, 4}, at::kLong), context), util::Error);
}

TEST(ParallelModel, RefusesASequenceThatDoesNotDivide) {
  const ModelOptions options = small_options("llama");
  const auto model = testing::make_initialized(options);
  parallelize(*model, plan_of(options), fake_ranks(4));
  try {
    model->forward(at::zeros({1, 6}, at::kLong));
    FAIL();
  } catch (const util::Error& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("found 6 = 1 x 4 + 2; pad it to 8"));
  }
}

/// A stage of one's own.
class TwoLayers final : public Stage {
 public:
  explicit TwoLayers(int64_t size) {
    in_ = register_module("in",
                          std::make_shared<Linear>(size, 4 * size, Compute(), LinearForm{.biased = true}));
    out_ = register_module("out",
                           std::make_shared<Linear>(4 * size, size, Compute(), LinearForm{.biased = true}));
    at::NoGradGuard no_grad;
    // libtorch's generator is shared by the threads that stand for ranks.
    const at::Generator generator = util::named_generator(4, "two_layers");
    for (const at::Tensor& parameter : parameters()) parameter.normal_(0, 0.1, generator);
  }
  std::string type_name() const override { return "two_layers"; }

 protected:
  at::Tensor compute(const at::Tensor& x, const StageContext&) override {
    return out_->forward(in_->forward(x).tanh());
  }

 private:
  std::shared_ptr<Linear> in_, out_;
};

class Outer final : public Stage {
 public:
  Outer() { inner_ = register_module("inner", std::make_shared<TwoLayers>(8)); }
  std::string type_name() const override { return "outer"; }

 protected:
  at::Tensor compute(const at::Tensor& x, const StageContext& context) override {
    return inner_->forward(x.sin(), context).cos();
  }

 private:
  std::shared_ptr<TwoLayers> inner_;
};

TEST(Parallelize, TakesStagesOfOnesOwn) {
  const auto run = [](Stage& model) {
    at::Tensor loss = model.forward(at::arange(2 * 4 * 8, at::kFloat).view({2, 4, 8})).square().sum();
    loss.backward();
    return loss.detach();
  };
  const auto make = [] { return std::make_shared<Outer>(); };
  const std::vector<ParallelPlan> plans = {
      {{"inner.in", ColwiseParallel{}}, {"inner.out", RowwiseParallel{}}},
      {{"inner.in", ColwiseParallel{.output = Replicate{}}}},
      {{"inner", PrepareModuleInput{}}, {"inner.in", ColwiseParallel{}}, {"inner.out", RowwiseParallel{}}},
      {{"inner", PrepareModuleInput{}},
       {"inner.in", ColwiseParallel{}},
       {"inner.out", RowwiseParallel{.output = Shard{1}}},
       {"inner", PrepareModuleOutput{.output = Shard{1}, .desired = Replicate{}}}}};
  for (const ParallelPlan& plan : plans) {
    for (int world : {1, 2, 4}) testing::expect_as_whole(make, plan, world, run);
  }
}

}  // namespace
}  // namespace fsdp::nn
