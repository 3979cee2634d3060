// Blocks as graphs of a device (model/nn/stage_graphs.h), under an engine that gathers and frees what they
// use. The graphs of the fake device run on the addresses that they were recorded with, so a graph that is
// launched where its parameters or activations are no more reads NaN.

#include "model/nn/stage_graphs.h"

#include <gtest/gtest.h>
#include <torch/csrc/autograd/custom_function.h>

#include "base/tensor/storage.h"
#include "model/kernels/gradient_sink.h"
#include "model/nn/documents.h"
#include "support/fake_collectives.h"
#include "support/gradient_sinks.h"
#include "support/sharded_run.h"
#include "support/told_step.h"

namespace fsdp::testing {
namespace {

RunPlan plan_of_blocks() {
  RunPlan plan;
  plan.model.fused_kernels = false;
  plan.shard.wrap_stages = {"block"};
  plan.global_rows = 8;
  plan.steps = 8;
  plan.max_norm = 1;
  return plan;
}

struct GraphWay {
  std::string name;
  std::function<void(RunPlan&)> change;
  int world_size = 2;
  int64_t blocks_without_backward = 0;
};

std::ostream& operator<<(std::ostream& out, const GraphWay& way) { return out << way.name; }

class GraphedRun : public ::testing::TestWithParam<GraphWay> {};

TEST_P(GraphedRun, IsTheSameBitForBitAndLaunchesTheSameGraphsStepAfterStep) {
  RunPlan plan = plan_of_blocks();
  GetParam().change(plan);
  plan.interpose = on_fake_device;
  const RunResult expected = train_sharded(GetParam().world_size, plan);
  plan.graph_pools = FakeDevice::graph_pools();
  FakeDevice::get().begin();
  const RunResult actual = train_sharded(GetParam().world_size, plan);
  EXPECT_EQ(FakeDevice::get().report(), "");
  expect_identical_runs(actual, expected, GetParam().name);
  const int64_t passes = plan.steps * plan.accumulation - nn::kPassesBeforeGraphs;
  const int64_t stages = plan.model.num_hidden_layers;
  EXPECT_EQ(actual.graphs.plain, 0);
  EXPECT_EQ(actual.graphs.recorded + actual.graphs.launched,
            (2 * stages - GetParam().blocks_without_backward) * passes);
  // The first block has another place in the pool in backward than later ones where that was empty before.
  EXPECT_LE(actual.graphs.recorded, 4 * stages) << actual.graphs.launched;
  RunPlan longer = plan;
  longer.steps += 3;
  EXPECT_EQ(train_sharded(GetParam().world_size, longer).graphs.recorded, actual.graphs.recorded);
}

INSTANTIATE_TEST_SUITE_P(
    Ways, GraphedRun,
    ::testing::Values(
        GraphWay{"full_shard", [](RunPlan&) {}}, GraphWay{"AloneInItsWorld", [](RunPlan&) {}, 1},
        GraphWay{"OneUnit", [](RunPlan& plan) { plan.shard.wrap_stages = {}; }},
        GraphWay{"Gpt2", [](RunPlan& plan) { plan.model = tiny_options("gpt2"); }},
        GraphWay{"NoPrefetch",
                 [](RunPlan& plan) {
                   plan.shard.forward_prefetch = "none";
                   plan.shard.backward_prefetch = "none";
                 }},
        GraphWay{"KeepsAfterForward", [](RunPlan& plan) { plan.shard.reshard_after_forward = false; }},
        GraphWay{"no_shard", [](RunPlan& plan) { plan.shard.strategy = "no_shard"; }},
        GraphWay{"Hybrid",
                 [](RunPlan& plan) {
                   plan.shard.strategy = "hybrid_shard";
                   plan.mesh = {.dcn = 2, .data = 2};
                 },
                 4},
        GraphWay{"Accumulation", [](RunPlan& plan) { plan.accumulation = 2; }},
        GraphWay{"AccumulationAlone", [](RunPlan& plan) { plan.accumulation = 3; }, 1},
        GraphWay{"AccumulationWithoutSync",
                 [](RunPlan& plan) {
                   plan.accumulation = 2;
                   plan.no_sync = true;
                 }},
        GraphWay{"Bf16",
                 [](RunPlan& plan) {
                   plan.shard.mixed_precision.param_dtype = plan.shard.mixed_precision.reduce_dtype =
                       "bfloat16";
                 }},
        GraphWay{"Offload",
                 [](RunPlan& plan) { plan.shard.cpu_offload = plan.shard.move_grads_to_cpu = true; }},
        GraphWay{"OffloadAlone",
                 [](RunPlan& plan) { plan.shard.cpu_offload = plan.shard.move_grads_to_cpu = true; }, 1},
        GraphWay{"PerParameter", [](RunPlan& plan) { plan.shard.layout = "per_parameter"; }},
        GraphWay{"Spmd", [](RunPlan& plan) { plan.spmd = true; }},
        GraphWay{"Frozen",
                 [](RunPlan& plan) {
                   plan.frozen = {"*embed_tokens*", "*layers.0.*", "*layers.1.mlp.*"};
                 },
                 2, 1}),
    [](const auto& info) { return info.param.name; });

/// Three matrices in a row on the fake device, each a graph, and the same without graphs.
class GraphedChain : public ::testing::Test {
 protected:
  GraphedChain() {
    move_parameters(graphed, device);
    move_parameters(plain, device);
    counts = nn::graph_stages(graphed, {"block"}, FakeDevice::graph_pools());
    for (int i = 0; i < nn::kPassesBeforeGraphs; ++i) expect_same_pass(input(2, i));
    EXPECT_EQ(counts->recorded + counts->plain, 0);
  }

  at::Tensor input(int64_t rows, int64_t seed) const {
    return (at::arange(rows * 4, at::kFloat) * 0.3 + static_cast<double>(seed))
        .sin()
        .view({rows, 4})
        .to(device);
  }
  static std::vector<at::Tensor> gradients(ChainStage& chain) {
    std::vector<at::Tensor> result;
    for (const at::Tensor& parameter : chain.parameters()) {
      if (!parameter.grad().defined()) continue;
      result.push_back(parameter.grad().cpu());
      at::Tensor(parameter).mutable_grad() = at::Tensor();
    }
    return result;
  }
  void expect_same_gradients() {
    const auto expected = gradients(plain), found = gradients(graphed);
    ASSERT_EQ(found.size(), expected.size());
    for (size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(found[i].equal(expected[i])) << i;
  }
  void expect_same_pass(const at::Tensor& x) {
    at::Tensor expected = plain.forward(x), found = graphed.forward(x);
    EXPECT_TRUE(found.cpu().equal(expected.cpu()));
    expected.square().sum().backward();
    found.square().sum().backward();
    expect_same_gradients();
  }

  at::Device device = FakeDevice::get().device();
  ChainStage graphed{3, 4}, plain{3, 4};
  std::shared_ptr<const nn::GraphCounts> counts;
};

TEST_F(GraphedChain, RecordsOnceAndLaunchesFromThenOn) {
  for (int i = 0; i < 4; ++i) expect_same_pass(input(2, 10 + i));
  EXPECT_EQ(counts->recorded, 6);
  EXPECT_EQ(counts->launched, 18);
  EXPECT_EQ(counts->plain, 0);
}

TEST_F(GraphedChain, EvaluatesKernelByKernelAndLeavesWhatBackwardNeeds) {
  expect_same_pass(input(2, 1));
  at::Tensor expected = plain.forward(input(2, 2)), found = graphed.forward(input(2, 2));
  {
    at::NoGradGuard no_grad;
    EXPECT_TRUE(graphed.forward(input(3, 3)).cpu().equal(plain.forward(input(3, 3)).cpu()));
  }
  expected.sum().backward();
  found.sum().backward();
  expect_same_gradients();
  EXPECT_EQ(counts->recorded, 6);
  EXPECT_EQ(counts->plain, 0);
}

TEST_F(GraphedChain, HasGraphsForAFewShapesAndRunsOthersKernelByKernel) {
  const auto shapes = static_cast<int64_t>(nn::kGraphsOfAStage);
  for (int64_t round = 0; round < 2; ++round) {
    for (int64_t rows = 1; rows <= shapes + 2; ++rows) expect_same_pass(input(rows, rows + round));
  }
  EXPECT_EQ(counts->recorded, 6 * shapes);
  EXPECT_EQ(counts->launched, 6 * shapes);
  EXPECT_EQ(counts->plain, 2 * 2 * 3) << "forward alone: its backward is autograd's own";
}

TEST_F(GraphedChain, GoesOnWhereParametersLieElsewhere) {
  expect_same_pass(input(2, 1));
  at::NoGradGuard no_grad;
  for (ChainStage* chain : {&graphed, &plain}) {
    at::Tensor weight = chain->layer(1).weight();
    weight.set_data(weight.detach() * 2);
  }
  at::AutoGradMode grad(true);
  for (int i = 0; i < 3; ++i) expect_same_pass(input(2, i));
  // Both ways of the one that moved and of the one behind it, whose input moved with its output, and the
  // backward of the one before it.
  EXPECT_EQ(counts->recorded, 6 + 2 + 2 + 1);
}

TEST_F(GraphedChain, KeepsTwoForwardPassesApart) {
  expect_same_pass(input(2, 1));
  at::Tensor first = graphed.forward(input(2, 2)), second = graphed.forward(input(2, 3));
  at::Tensor first_plain = plain.forward(input(2, 2)), second_plain = plain.forward(input(2, 3));
  EXPECT_TRUE(first.cpu().equal(first_plain.cpu()));
  for (const at::Tensor& output : {second, first, second_plain, first_plain})
    output.square().sum().backward();
  expect_same_gradients();
  EXPECT_EQ(counts->plain, 3);
}

TEST_F(GraphedChain, GoesOnWhereParametersMoveBetweenForwardAndBackward) {
  expect_same_pass(input(2, 1));
  at::Tensor expected = plain.forward(input(2, 2)), found = graphed.forward(input(2, 2));
  // As a unit that is freed after forward and gathered elsewhere: what lay there before is gone.
  at::Tensor weight = graphed.layer(1).weight();
  const at::Tensor values = weight.detach().clone();
  util::free_storage(weight);
  const at::Tensor taken = at::empty_like(values);
  util::restore_storage(weight, static_cast<int64_t>(values.nbytes()));
  weight.detach().copy_(values);
  expected.square().sum().backward();
  found.square().sum().backward();
  expect_same_gradients();
}

/// Like MatrixStage, but allocates what backward needs first, before anything is freed.
class SavesFirst final : public nn::Stage {
 public:
  SavesFirst() : weight_(register_parameter("weight", at::arange(16, at::kFloat).view({4, 4}).cos())) {}
  std::string type_name() const override { return "block"; }

 protected:
  at::Tensor compute(const at::Tensor& x, const nn::StageContext&) override {
    return at::linear(x.tanh(), weight_);
  }

 private:
  at::Tensor weight_;
};

/// One of each, in the order asked for, with something that is no stage in between.
class OneOfEach final : public nn::Stage {
 public:
  OneOfEach()
      : first_(register_module("first", std::make_shared<MatrixStage>(4, 4))),
        second_(register_module("second", std::make_shared<SavesFirst>())) {
    move_parameters(*this, FakeDevice::get().device());
  }
  std::string type_name() const override { return "root"; }
  bool second_comes_first = false;

 protected:
  at::Tensor compute(const at::Tensor& x, const nn::StageContext& context) override {
    Stage &one = *first_, &other = *second_;
    return second_comes_first ? one.forward(other.forward(x, context) * 1, context)
                              : other.forward(one.forward(x, context) * 1, context);
  }

 private:
  std::shared_ptr<MatrixStage> first_;
  std::shared_ptr<SavesFirst> second_;
};

/// A graph keeps what its backward needs in memory that an earlier graph of the pool has freed: launched in
/// the other order, the earlier one would overwrite it.
TEST(StageGraphs, KeepActivationsApartWhenStagesRunInAnotherOrder) {
  OneOfEach graphed, plain;
  const auto counts = nn::graph_stages(graphed, {"block"}, FakeDevice::graph_pools());
  for (int pass = 0; pass < 12; ++pass) {
    graphed.second_comes_first = plain.second_comes_first = pass % 4 == 3;
    const at::Tensor x = (at::arange(8, at::kFloat) + pass).sin().view({2, 4}).to(FakeDevice::get().device());
    for (OneOfEach* one : {&graphed, &plain}) {
      one->zero_grad();
      one->forward(x).square().sum().backward();
    }
    for (const auto& parameter : plain.named_parameters()) {
      EXPECT_TRUE(
          graphed.named_parameters()[parameter.key()].grad().cpu().equal(parameter.value().grad().cpu()))
          << parameter.key() << " in pass " << pass;
    }
  }
  EXPECT_GT(counts->launched, 12);
}

/// Scales each token by the number of tokens of its document, as the device knows it.
class ScalesByDocument final : public nn::Stage {
 public:
  ScalesByDocument() : weight_(register_parameter("weight", at::arange(1, 5, at::kFloat))) {}
  std::string type_name() const override { return "block"; }

 protected:
  at::Tensor compute(const at::Tensor& x, const nn::StageContext& context) override {
    const at::Tensor& bounds = context.document_bounds;
    const at::Tensor numbers = at::ones({x.size(0)}, x.options().dtype(at::kInt)).cumsum(0, at::kInt);
    const at::Tensor next = at::searchsorted(bounds, numbers);  // of each token's document
    const at::Tensor length = bounds.index_select(0, next) - bounds.index_select(0, next - 1);
    return (x * weight_ * length.unsqueeze(1)).tanh();
  }

 private:
  at::Tensor weight_;
};

class ScaledByDocuments final : public nn::Stage {
 public:
  ScaledByDocuments()
      : first_(register_module("first", std::make_shared<ScalesByDocument>())),
        second_(register_module("second", std::make_shared<ScalesByDocument>())) {
    move_parameters(*this, FakeDevice::get().device());
  }
  std::string type_name() const override { return "root"; }

  /// Compares the pass through 8 tokens in two rows with that of `plain`.
  void expect_same_pass(ScaledByDocuments& plain, const nn::DocumentStarts& documents) {
    std::vector<std::vector<at::Tensor>> results;
    for (ScaledByDocuments* model : {&plain, this}) {
      at::Tensor y = model->output(documents);
      y.sum().backward();
      results.push_back({y.cpu()});
      for (const at::Tensor& parameter : model->parameters()) {
        results.back().push_back(parameter.grad().cpu());
        at::Tensor(parameter).mutable_grad() = at::Tensor();
      }
    }
    for (size_t i = 0; i < results[0].size(); ++i) EXPECT_TRUE(results[1][i].equal(results[0][i])) << i;
  }
  at::Tensor output(const nn::DocumentStarts& documents) {
    const at::Device device = FakeDevice::get().device();
    return forward((at::arange(32, at::kFloat) * 0.05).sin().view({8, 4}).to(device),
                   {.documents = std::make_shared<nn::DocumentStarts>(documents),
                    .document_bounds = nn::document_bounds(documents, 4, device)});
  }

 protected:
  at::Tensor compute(const at::Tensor& x, const nn::StageContext& context) override {
    return second_->forward(first_->forward(x, context), context);
  }

 private:
  std::shared_ptr<ScalesByDocument> first_, second_;
};

TEST(StageGraphs, AreTheSameWhateverTheDocuments) {
  ScaledByDocuments graphed, plain;
  const auto counts = nn::graph_stages(graphed, {"block"}, FakeDevice::graph_pools());
  for (int i = 0; i < nn::kPassesBeforeGraphs; ++i) graphed.expect_same_pass(plain, {{0}, {0}});
  graphed.expect_same_pass(plain, {{0, 1, 3}, {0}});
  for (const nn::DocumentStarts& documents :
       {nn::DocumentStarts{{0}, {0, 2, 3}}, {{0}, {0}}, {{0, 2}, {0, 1}}, {{0, 1, 2}, {0}}}) {
    graphed.expect_same_pass(plain, documents);
  }
  EXPECT_EQ(counts->recorded, 4);
  EXPECT_EQ(counts->launched, 16);
  graphed.expect_same_pass(plain, {{0, 1, 2, 3}, {0}});  // more than there were
  graphed.expect_same_pass(plain, {{0, 1, 2, 3}, {0, 1, 2, 3}});
  graphed.expect_same_pass(plain, {{0}, {0, 2, 3}});
  EXPECT_EQ(counts->recorded, 8);
  EXPECT_EQ(counts->launched, 24);
  EXPECT_EQ(counts->plain, 0);
}

TEST(StageGraphs, KeepTheDocumentsOfAPassUntilItsBackward) {
  ScaledByDocuments graphed, plain;
  const auto counts = nn::graph_stages(graphed, {"block"}, FakeDevice::graph_pools());
  for (int i = 0; i <= nn::kPassesBeforeGraphs; ++i) graphed.expect_same_pass(plain, {{0}, {0}});
  std::vector<std::vector<at::Tensor>> results;
  for (ScaledByDocuments* model : {&plain, &graphed}) {
    at::Tensor first = model->output({{0}, {0}}), second = model->output({{0}, {0, 2}});
    results.push_back({first.cpu(), second.cpu()});
    first.sum().backward();
    for (const at::Tensor& parameter : model->parameters()) {
      results.back().push_back(parameter.grad().cpu());
    }
  }
  for (size_t i = 0; i < results[0].size(); ++i) EXPECT_TRUE(results[1][i].equal(results[0][i])) << i;
  EXPECT_EQ(counts->plain, 2);
}

TEST_F(GraphedChain, BackwardOfAKeptPassMayRunAgainAndOfOneGivenBackIsRefused) {
  expect_same_pass(input(2, 1));
  at::Tensor found = graphed.forward(input(2, 2)).sum(), expected = plain.forward(input(2, 2)).sum();
  for (const at::Tensor& output : {found, expected}) output.backward({}, /*retain_graph=*/true);
  for (const at::Tensor& output : {found, expected}) output.backward();
  expect_same_gradients();
  EXPECT_THROW(found.backward(), std::exception);
  expect_same_pass(input(2, 3));
}

TEST_F(GraphedChain, GoesOnAfterAPassThatFailed) {
  graphed.layer(1).throws = true;
  EXPECT_THROW(graphed.forward(input(2, 1)), std::runtime_error) << "while it was recorded";
  graphed.layer(1).throws = false;
  for (int i = 0; i < 3; ++i) expect_same_pass(input(2, i));
  EXPECT_EQ(counts->plain, 0);
}

TEST_F(GraphedChain, RefusesHigherDerivativesByName) {
  expect_same_pass(input(2, 1));
  at::Tensor loss = graphed.forward(input(2, 2)).square().sum();
  try {
    loss.backward({}, /*retain_graph=*/true, /*create_graph=*/true);
    ADD_FAILURE() << "not refused";
  } catch (const util::Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    EXPECT_NE(std::string(error.what()).find("layers.2"), std::string::npos) << error.what();
  }
}

TEST(StageGraphs, RefusesAModelWithoutSuchStages) {
  ChainStage chain(2, 4);
  EXPECT_THROW(nn::graph_stages(chain, {"attention"}, FakeDevice::graph_pools()), util::Error);
}

/// x w, whose backward puts the gradient of w where its sink says, as products on GPUs do.
class IntoSink final : public torch::autograd::Function<IntoSink> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            const at::Tensor& w) {
    context->save_for_backward({x, w});
    return at::mm(x, w);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    const at::Tensor given = at::mm(gradients[0], saved[1].t());
    auto place = kernels::take_gradient_place(saved[1], at::kFloat);
    if (!place) return {given, at::mm(saved[0].t(), gradients[0])};
    if (place->adds) {
      at::addmm_out(place->memory, place->memory, saved[0].t(), gradients[0]);
    } else {
      at::mm_out(place->memory, saved[0].t(), gradients[0]);
    }
    return {given, at::Tensor()};
  }
};

class SinkStage final : public nn::Stage {
 public:
  explicit SinkStage(const at::Tensor& weight) : weight_(register_parameter("weight", weight)) {}
  std::string type_name() const override { return "block"; }
  at::Tensor& weight() { return weight_; }

 protected:
  at::Tensor compute(const at::Tensor& x, const nn::StageContext&) override {
    return IntoSink::apply(IntoSink::apply(x, weight_).tanh(), weight_);  // takes the place twice
  }

 private:
  at::Tensor weight_;
};

class RootOfOne final : public nn::Stage {
 public:
  explicit RootOfOne(std::shared_ptr<SinkStage> stage) : inner(register_module("inner", std::move(stage))) {}
  std::string type_name() const override { return "root"; }
  std::shared_ptr<SinkStage> inner;

 protected:
  at::Tensor compute(const at::Tensor& x, const nn::StageContext& context) override {
    return inner->forward(x, context);
  }
};

TEST(StageGraphs, PutGradientsWhereTheSinkSaysOverOrOnTopOfWhatIsThere) {
  const at::Device device = FakeDevice::get().device();
  const at::Tensor weight = (at::arange(16, at::kFloat) * 0.7).cos().view({4, 4}).to(device);
  RootOfOne graphed(std::make_shared<SinkStage>(weight.clone())),
      plain(std::make_shared<SinkStage>(weight.clone()));
  auto& sink = kernels::TestSink::attach(graphed.inner->weight());
  auto& expected = kernels::TestSink::attach(plain.inner->weight());
  const auto counts = nn::graph_stages(graphed, {"block"}, FakeDevice::graph_pools());
  for (int pass = 0; pass < 12; ++pass) {
    const at::Tensor x = (at::arange(8, at::kFloat) + pass).sin().view({2, 4}).to(device);
    // Three passes add up; before the ninth the place moves.
    for (auto* one : {&sink, &expected}) {
      if (pass % 3 == 0) one->holds = false;
      if (pass == 8) one->memory = one->memory.clone();
    }
    graphed.forward(x).sum().backward();
    plain.forward(x).sum().backward();
    EXPECT_TRUE(sink.memory.cpu().equal(expected.memory.cpu())) << pass;
    EXPECT_TRUE(sink.holds);
  }
  EXPECT_EQ(sink.by_autograd, 0);
  EXPECT_EQ(counts->plain, 0);
  // Forward; backward over and onto, before and after the move.
  EXPECT_EQ(counts->recorded, 1 + 2 + 2);
}

}  // namespace
}  // namespace fsdp::testing
