#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>
#include <cmath>

#include "base/util/error.h"
#include "shard/spmd/spmd_module.h"
#include "shard/state/grad_norm.h"
#include "shard/state/state_dict.h"
#include "support/log_lines.h"
#include "support/on_mesh.h"
#include "support/sharded_run.h"

namespace fsdp::shard {
namespace {

using comm::MeshAxis;
using ::testing::HasSubstr;
using testing::on_mesh;
using testing::refusal_of;

constexpr MeshAxis kDcn = MeshAxis::kDcn, kData = MeshAxis::kData;

// ---- marks

TEST(ShardingMarks, CutAReplicatedActivationOnItsBatchDimension) {
  on_mesh({.dcn = 2, .data = 2}, [](const comm::Mesh& mesh) {
    at::Tensor whole = at::arange(24, at::kFloat).view({8, 3});
    at::Tensor part = mark_sharding(whole, mesh, {{kDcn, kData}, {}});
    int rank = mesh.world()->rank();
    EXPECT_TRUE(at::equal(part, whole.narrow(0, 2 * rank, 2)));
    EXPECT_EQ(sharding_of(part)->global_shape, (std::vector<int64_t>{8, 3}));
    EXPECT_FALSE(sharding_of(whole).has_value());
    EXPECT_TRUE(at::equal(full_tensor(part, mesh), whole));
    EXPECT_TRUE(mark_sharding(part, mesh, {{kDcn, kData}, {}}).is_same(part));
  });
}

TEST(ShardingMarks, CutTwoDimensionsOnTwoAxes) {
  on_mesh({.dcn = 2, .data = 3}, [](const comm::Mesh& mesh) {
    at::Tensor whole = at::arange(24, at::kFloat).view({4, 6});
    at::Tensor part = mark_sharding(whole, mesh, {{kDcn}, {kData}});
    EXPECT_TRUE(at::equal(
        part, whole.narrow(0, 2 * mesh.coordinate().dcn, 2).narrow(1, 2 * mesh.coordinate().data, 2)));
    EXPECT_TRUE(at::equal(full_tensor(part, mesh), whole));
  });
}

TEST(ShardingMarks, TheGradientOfAReplicatedActivationIsWhole) {
  on_mesh({.dcn = 1, .data = 4}, [](const comm::Mesh& mesh) {
    at::Tensor weight = at::full({8}, 2.0f).requires_grad_();
    at::Tensor whole = at::arange(8, at::kFloat) * weight;
    at::Tensor part = mark_sharding(whole, mesh, {{kData}});
    part.square().mean().backward();  // the mean of the ranks' means is the mean over all
    at::Tensor expected = at::arange(8, at::kFloat).square() * 2 * 2 / 8;
    EXPECT_TRUE(at::allclose(weight.grad(), expected));
  });
}

TEST(ShardingMarks, ABatchThatDoesNotDivideIsAnErrorWithTheNumbers) {
  on_mesh({.dcn = 2, .data = 2}, [](const comm::Mesh& mesh) {
    auto refused = refusal_of([&] { mark_sharding(at::zeros({6, 2}), mesh, batch_spec()); });
    EXPECT_EQ(refused.kind, ErrorKind::kUsage);
    EXPECT_THAT(refused.text,
                HasSubstr("dimension 0 of [6, 2] to divide over dcn 2 x data 2 = 4 ranks; found 6 "
                          "= 1 x 4 + 2; pad it to 8"));
  });
}

TEST(ShardingMarks, RefuseSpecsThatDoNotFit) {
  on_mesh({.dcn = 1, .data = 2}, [](const comm::Mesh& mesh) {
    at::Tensor whole = at::zeros({4});
    EXPECT_THAT(refusal_of([&] {
                  mark_sharding(whole, mesh, {{kData}, {}});
                }).text,
                HasSubstr("at most 1 dimensions for a tensor of shape [4]; found (data, whole) of 2"));
    EXPECT_THAT(refusal_of([&] {
                  mark_sharding(at::zeros({4, 4}), mesh, {{kData}, {kData}});
                }).text,
                HasSubstr("data twice in (data, data)"));
    EXPECT_THAT(refusal_of([&] {
                  mark_sharding(whole, mesh, {{kData, kDcn}});
                }).text,
                HasSubstr("in the order dcn, data, context, model"));
    at::Tensor part = mark_sharding(at::zeros({4, 4}), mesh, {{kData}, {}});
    EXPECT_THAT(refusal_of([&] {
                  mark_sharding(part, mesh, {{}, {kData}});
                }).text,
                HasSubstr("found one that is sharded as (data, whole)"));
  });
}

TEST(ShardingMarks, AreGoneWithTheirTensor) {
  on_mesh({.dcn = 1, .data = 1}, [](const comm::Mesh& mesh) {
    for (int i = 0; i < 1000; ++i) {
      at::Tensor tensor = at::zeros({2});
      EXPECT_FALSE(sharding_of(tensor).has_value());
      mark_local_shard(tensor, mesh, {{kData}});
    }
  });
}

TEST(ShardingMarks, ANumberSuchAsTheLossOfTheseRowsGetsNone) {
  on_mesh({.dcn = 1, .data = 2}, [](const comm::Mesh& mesh) {
    const nn::ModelOptions options = testing::tiny_options();
    auto model = testing::make_initialized(options);
    const auto engine = spmd_fully_shard(*model, mesh);
    const at::Tensor rows = testing::token_rows(0, 4, 9, options.vocab_size);
    nn::StageContext context;
    context.targets = mark_sharding(rows.narrow(1, 1, 8).contiguous(), mesh, batch_spec());
    const at::Tensor loss = model->forward(rows.narrow(1, 0, 8).contiguous(), context);
    ASSERT_EQ(loss.dim(), 0);
    EXPECT_FALSE(sharding_of(loss).has_value());
    EXPECT_THAT(refusal_of([&] { full_tensor(loss, mesh); }).text,
                HasSubstr("state it with mark_local_shard()"));
  });
}

// ---- whole models

struct Training {
  std::vector<double> losses;
  std::map<std::string, at::Tensor> weights;
};

/// Some steps on batches of 12 rows that every rank has whole.
Training train_spmd(nn::Stage& model, Engine& engine, const comm::Mesh& mesh, const testing::RunPlan& plan) {
  Training result;
  for (int64_t step = 0; step < plan.steps; ++step) {
    at::Tensor rows = testing::token_rows(step * 12, 12, 9, plan.model.vocab_size);
    at::Tensor ids = rows.narrow(1, 0, 8), targets = rows.narrow(1, 1, 8);
    engine.zero_gradients();
    at::Tensor logits = model.forward(ids);
    EXPECT_EQ(logits.size(0), 12 / mesh.world()->world_size());
    EXPECT_EQ(sharding_of(logits)->global_shape[0], 12);
    at::Tensor mine = mark_sharding(targets.contiguous(), mesh, batch_spec());
    at::Tensor loss = at::cross_entropy_loss(logits.reshape({-1, logits.size(-1)}), mine.reshape({-1}));
    loss.backward();
    testing::sgd_on_shards(engine, plan.learning_rate);
    at::Tensor sum = loss.detach().to(at::kDouble).reshape({1});
    mesh.world()->all_reduce(sum, comm::ReduceOp::kSum, {.unit = "loss"})->wait();
    result.losses.push_back(sum.item<double>() / mesh.world()->world_size());
  }
  for (auto& [name, tensor] : full_state_dict(engine)) result.weights[name] = tensor;
  return result;
}

SpmdOptions wrap_blocks() {
  SpmdOptions options;
  options.auto_wrap_policy = stage_type_policy({"block"});
  return options;
}

void expect_same(const Training& actual, const Training& expected, const std::string& what) {
  ASSERT_EQ(actual.losses.size(), expected.losses.size());
  for (size_t i = 0; i < expected.losses.size(); ++i) {
    EXPECT_NEAR(actual.losses[i], expected.losses[i], 1e-5 * expected.losses[i]) << what;
  }
  ASSERT_EQ(actual.weights.size(), expected.weights.size());
  for (const auto& [name, weight] : actual.weights) {
    EXPECT_TRUE(at::allclose(weight, expected.weights.at(name), 1e-4, 1e-5)) << what << ", " << name;
  }
}

TEST(Spmd, AnyMeshTrainsAsOneRankDoes) {
  testing::RunPlan plan;
  Training expected;
  on_mesh({.dcn = 1, .data = 1}, [&](const comm::Mesh& mesh) {
    auto model = testing::make_model(plan);
    auto engine = spmd_fully_shard(*model, mesh, {}, wrap_blocks());
    expected = train_spmd(*model, *engine, mesh, plan);
  });
  for (comm::MeshOptions options : {comm::MeshOptions{2, 2}, {1, 4}, {4, 1}, {2, 1}, {1, 3}}) {
    for (const char* strategy : {"hybrid_shard", "full_shard"}) {
      on_mesh(options, [&](const comm::Mesh& mesh) {
        auto model = testing::make_model(plan);
        SpmdOptions spmd = wrap_blocks();
        spmd.shard.strategy = strategy;
        auto engine = spmd_fully_shard(*model, mesh, {}, spmd);
        expect_same(train_spmd(*model, *engine, mesh, plan), expected,
                    concat(to_string(mesh.shape()), ", ", strategy));
      });
    }
  }
}

TEST(Spmd, LayersShardedOneByOneAreTheUnitsOfTheModuleAroundThem) {
  testing::RunPlan plan;
  on_mesh({.dcn = 1, .data = 2}, [&](const comm::Mesh& mesh) {
    auto automatic = testing::make_model(plan), nested = testing::make_model(plan);
    auto expected_engine = spmd_fully_shard(*automatic, mesh, {}, wrap_blocks());
    for (const auto& module : nested->modules(/*include_self=*/false)) {
      auto* stage = dynamic_cast<nn::Stage*>(module.get());
      if (stage != nullptr && stage->type_name() == "block") spmd_fully_shard(*stage, mesh);
    }
    auto engine = spmd_fully_shard(*nested, mesh);
    ASSERT_EQ(engine->units().size(), expected_engine->units().size());
    for (size_t i = 0; i < engine->units().size(); ++i) {
      EXPECT_EQ(engine->units()[i]->name(), expected_engine->units()[i]->name());
    }
    auto expected = train_spmd(*automatic, *expected_engine, mesh, plan);
    auto actual = train_spmd(*nested, *engine, mesh, plan);
    EXPECT_EQ(actual.losses, expected.losses);
  });
}

TEST(Spmd, GradientsOfAUnitAreCommunicatedAtItsBoundaryAndNeverJoined) {
  testing::RunPlan plan;
  plan.steps = 1;
  on_mesh({.dcn = 2, .data = 2}, [&](const comm::Mesh& mesh) {
    auto trace = std::make_shared<comm::Trace>();
    comm::Mesh traced({.dcn = 2, .data = 2}, comm::make_tracing_communicator(mesh.world(), trace));
    auto model = testing::make_model(plan);
    auto engine = spmd_fully_shard(*model, traced, {}, wrap_blocks());
    trace->begin_step(1);
    train_spmd(*model, *engine, traced, plan);
    std::vector<std::string> scattered, reduced;
    for (const auto& event : trace->events(1)) {
      if (event.op == "reduce_scatter") scattered.push_back(event.unit);
      if (event.op == "all_reduce" && event.pass_or_event == "backward") reduced.push_back(event.unit);
    }
    std::vector<std::string> expected;
    for (const auto& unit : engine->units()) {
      if (unit->is_cut()) expected.insert(expected.begin(), unit->name());
    }
    EXPECT_EQ(scattered, expected) << "one for each unit, from the last to the first";
    // All-reduces over dcn follow, and that of the parameters that stay whole.
    EXPECT_EQ(reduced.size(), expected.size() + 1);
  });
}

TEST(Spmd, MarkedParametersAreCutWhereTheMarkSays) {
  testing::RunPlan plan;
  on_mesh({.dcn = 1, .data = 2}, [&](const comm::Mesh& mesh) {
    auto model = testing::make_model(plan);
    std::string cut, whole;
    for (const auto& parameter : model->named_parameters()) {
      if (parameter.key().find("q_proj") != std::string::npos && cut.empty()) {
        mark_sharding(parameter.value(), mesh, {{}, {kData}});
        cut = parameter.key();
      } else if (parameter.key().find("k_proj") != std::string::npos && whole.empty()) {
        mark_sharding(parameter.value(), mesh, {});
        whole = parameter.key();
      }
    }
    auto engine = spmd_fully_shard(*model, mesh, {}, wrap_blocks());
    const auto segment_of = [&](const std::string& name) {
      const auto found = std::find_if(engine->segments().begin(), engine->segments().end(),
                                      [&](const Segment& segment) { return segment.name == name; });
      if (found == engine->segments().end()) fail(ErrorKind::kUnexpected, "no segment of ", name);
      return *found;
    };
    const Segment of_cut = segment_of(cut);
    EXPECT_EQ(of_cut.range.rows, of_cut.shape[0]);
    EXPECT_EQ(of_cut.range.length(), of_cut.shape[1] / 2);
    EXPECT_EQ(engine->units()[segment_of(whole).unit]->name(), "root.replicated");
  });
}

TEST(Spmd, RefusesMarksThatTheStrategyCannotKeep) {
  testing::RunPlan plan;
  on_mesh({.dcn = 2, .data = 2}, [&](const comm::Mesh& mesh) {
    auto model = testing::make_model(plan);
    mark_sharding(model->parameters()[0], mesh, {{kDcn, kData}});
    auto refused = refusal_of([&] { spmd_fully_shard(*model, mesh); });
    EXPECT_THAT(refused.text, HasSubstr("over (data) with fsdp.strategy = hybrid_shard; found "));
    EXPECT_THAT(refused.text, HasSubstr("marked (dcn x data)"));
    comm::Mesh other({.dcn = 1, .data = 4}, mesh.world());
    refused = refusal_of([&] { spmd_fully_shard(*model, other); });
    EXPECT_THAT(refused.text, HasSubstr("marked on the mesh dcn 1 x data 4 x context 1 x model 1; found "));
  });
}

TEST(Spmd, RefusesAModuleThatIsShardedAlready) {
  testing::RunPlan plan;
  on_mesh({.dcn = 1, .data = 2}, [&](const comm::Mesh& mesh) {
    auto model = testing::make_model(plan);
    auto engine = spmd_fully_shard(*model, mesh);
    EXPECT_THAT(refusal_of([&] { spmd_fully_shard(*model, mesh); }).text,
                HasSubstr("shard each module once"));
  });
}

// ---- the module

/// The same on all ranks, which as threads would draw from one generator.
void set_values(torch::nn::Module& module) {
  at::NoGradGuard no_grad;
  int64_t first = 0;
  for (at::Tensor parameter : module.parameters()) {
    parameter.copy_(at::arange(first, first + parameter.numel()).sin().view_as(parameter));
    first += parameter.numel();
  }
}

/// Of the parameters after a backward of the loss in one process.
double plain_norm(torch::nn::Module& module, const at::Tensor& loss) {
  loss.backward();
  double norm = 0;
  for (const auto& parameter : module.parameters()) norm += parameter.grad().square().sum().item<double>();
  return std::sqrt(norm);
}

std::shared_ptr<torch::nn::SequentialImpl> two_layers() {
  auto layers = std::make_shared<torch::nn::SequentialImpl>(torch::nn::Linear(4, 5), torch::nn::Linear(5, 3));
  set_values(*layers);
  return layers;
}

TEST(SpmdModule, KeepsNamesAndForwardsIndices) {
  on_mesh({.dcn = 1, .data = 2}, [](const comm::Mesh& mesh) {
    auto layers = two_layers();
    SpmdFullyShardedDataParallel<torch::nn::SequentialImpl> sharded(layers, mesh);
    std::vector<std::string> names;
    for (const auto& parameter : sharded.named_parameters()) names.push_back(parameter.key());
    EXPECT_EQ(names, (std::vector<std::string>{"0.weight", "0.bias", "1.weight", "1.bias"}));
    for (auto& [name, tensor] : full_state_dict(sharded.engine())) {
      EXPECT_NE(std::find(names.begin(), names.end(), name), names.end()) << name;
    }
    EXPECT_EQ(sharded.module(), layers);
    EXPECT_EQ(sharded[1], layers->ptr(1));
    EXPECT_EQ(sharded->size(), 2u);  // a member of the module
  });
}

TEST(ShardingMarks, OfAParameterComeBeforeItIsSharded) {
  on_mesh({.dcn = 1, .data = 2}, [](const comm::Mesh& mesh) {
    auto layers = two_layers();
    const at::Tensor weight = layers->parameters().front();
    SpmdFullyShardedDataParallel<torch::nn::SequentialImpl> sharded(layers, mesh);
    const auto refused = refusal_of([&] { mark_sharding(weight, mesh, {{}, {kData}}); });
    EXPECT_EQ(refused.kind, ErrorKind::kUsage);
    EXPECT_THAT(
        refused.text,
        HasSubstr("mark_sharding(): expected a parameter that is not sharded yet; found one of shape"));
    EXPECT_THAT(refused.text, HasSubstr("mark it before the module is sharded or wrapped"));
    sharded.engine().unshard();
    mark_sharding(weight, mesh, {{}, {kData}});
  });
}

TEST(SpmdModule, ComputesThisRanksRows) {
  on_mesh({.dcn = 1, .data = 2}, [](const comm::Mesh& mesh) {
    auto plain = two_layers();
    SpmdFullyShardedDataParallel<torch::nn::SequentialImpl> sharded(two_layers(), mesh);
    at::Tensor batch = at::arange(16, at::kFloat).view({4, 4}).div(16);
    at::Tensor expected = plain->forward(batch), output = sharded.forward(batch);
    EXPECT_TRUE(at::allclose(full_tensor(output, mesh), expected));
    output.square().mean().backward();
    EXPECT_NEAR(grad_norm(sharded.engine()), plain_norm(*plain, expected.square().mean()), 1e-6);
  });
}

struct TupleModule : torch::nn::Module {
  TupleModule() : layer(register_module("layer", torch::nn::Linear(4, 4))) { set_values(*this); }
  std::tuple<at::Tensor, int> forward(const at::Tensor& x) { return {layer->forward(x), 7}; }
  torch::nn::Linear layer;
};

struct MapModule : torch::nn::Module {
  MapModule() : layer(register_module("layer", torch::nn::Linear(4, 4))) { set_values(*this); }
  std::map<std::string, at::Tensor> forward(const at::Tensor& x) { return {{"logits", layer->forward(x)}}; }
  torch::nn::Linear layer;
};

struct PairModule : torch::nn::Module {
  PairModule() : layer(register_module("layer", torch::nn::Linear(4, 4))) { set_values(*this); }
  std::pair<at::Tensor, at::Tensor> forward(const at::Tensor& x, const at::Tensor& scale) {
    return {layer->forward(x) * scale, x};
  }
  torch::nn::Linear layer;
};

at::Tensor four_rows() { return at::arange(16, at::kFloat).view({4, 4}).div(16); }

TEST(SpmdModule, OfATupleElement0IsTheActivationWithAWarning) {
  const std::string lines = testing::log_lines([] {
    on_mesh({.dcn = 1, .data = 2}, [](const comm::Mesh& mesh) {
      TupleModule plain;
      SpmdFullyShardedDataParallel<TupleModule> sharded(std::make_shared<TupleModule>(), mesh);
      auto [output, number] = sharded.forward(four_rows());
      EXPECT_EQ(number, 7);
      EXPECT_EQ(sharding_of(output)->global_shape, (std::vector<int64_t>{4, 4}));
      output.square().mean().backward();
      const at::Tensor expected = std::get<0>(plain.forward(four_rows()));
      EXPECT_NEAR(grad_norm(sharded.engine()), plain_norm(plain, expected.square().mean()), 1e-6);
    });
  });
  EXPECT_THAT(lines, HasSubstr("returns a tuple, whose element 0 is taken to be the sharded activation"));
}

TEST(SpmdModule, TakesSeveralInputsAndReturnsAPair) {
  const std::string lines = testing::log_lines([] {
    on_mesh({.dcn = 1, .data = 2}, [](const comm::Mesh& mesh) {
      PairModule plain;
      SpmdFullyShardedDataParallel<PairModule> sharded(std::make_shared<PairModule>(), mesh);
      const at::Tensor scale = at::arange(1, 5, at::kFloat).view({4, 1});
      auto [output, input] = sharded.forward(four_rows(), scale);
      const auto [expected, all] = plain.forward(four_rows(), scale);
      EXPECT_TRUE(at::allclose(full_tensor(output, mesh), expected));
      EXPECT_TRUE(at::equal(input, all.narrow(0, 2 * mesh.world()->rank(), 2)));
      output.square().mean().backward();
      EXPECT_NEAR(grad_norm(sharded.engine()), plain_norm(plain, expected.square().mean()), 1e-6);
    });
  });
  EXPECT_THAT(lines, HasSubstr("returns a tuple, whose element 0 is taken to be the sharded activation"));
}

TEST(SpmdModule, AnInputThatIsNoBatchIsMarkedWhole) {
  on_mesh({.dcn = 1, .data = 2}, [](const comm::Mesh& mesh) {
    SpmdFullyShardedDataParallel<PairModule> sharded(std::make_shared<PairModule>(), mesh);
    const at::Tensor scale = at::full({1, 4}, 2.0f);
    const auto refused = refusal_of([&] { sharded.forward(four_rows(), scale); });
    EXPECT_THAT(refused.text,
                HasSubstr("expected inputs of one batch, of 4 rows; found input 1 of shape [1, 4]"));
    const at::Tensor output = sharded.forward(four_rows(), mark_local_shard(scale, mesh, {})).first;
    EXPECT_TRUE(at::allclose(full_tensor(output, mesh), PairModule().forward(four_rows(), scale).first));
  });
}

TEST(SpmdModule, AnyOtherOutputAsksForAChoice) {
  on_mesh({.dcn = 1, .data = 2}, [](const comm::Mesh& mesh) {
    using Sharded = SpmdFullyShardedDataParallel<MapModule>;
    auto refused = refusal_of([&] { Sharded(std::make_shared<MapModule>(), mesh); });
    EXPECT_EQ(refused.kind, ErrorKind::kUsage);
    EXPECT_THAT(refused.text, HasSubstr("std::map"));
    EXPECT_THAT(refused.text, HasSubstr("pass select_output, and shard_output"));
    int marked = 0;
    Sharded sharded(
        std::make_shared<MapModule>(), mesh,
        [&](const at::Tensor& output, const comm::Mesh& on) {
          ++marked;
          mark_local_shard(output, on, batch_spec());
        },
        {}, [](std::map<std::string, at::Tensor>& output) -> at::Tensor& { return output.at("logits"); });
    auto output = sharded.forward(four_rows());
    EXPECT_EQ(marked, 1);
    output.at("logits").square().mean().backward();
    MapModule plain;
    const at::Tensor loss = plain.forward(four_rows()).at("logits").square().mean();
    EXPECT_NEAR(grad_norm(sharded.engine()), plain_norm(plain, loss), 1e-6);
  });
}

}  // namespace
}  // namespace fsdp::shard
