// Marks with the mesh axis model: layers of one's own that ranks compute together.

#include "shard/spmd/model_marks.h"

#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include <cmath>
#include <map>

#include "model/nn/layers.h"
#include "model/nn/parallelize.h"
#include "model/parallel/collectives.h"
#include "shard/spmd/marks.h"
#include "shard/spmd/spmd_fully_shard.h"
#include "shard/state/grad_norm.h"
#include "shard/state/state_dict.h"
#include "support/on_mesh.h"
#include "support/sharded_run.h"

namespace fsdp::shard::sharing {
namespace {

using comm::MeshAxis;
using ::testing::HasSubstr;
using testing::on_mesh;
using testing::refusal_of;
using HookedLinear = nn::Hooked<torch::nn::LinearImpl>;

constexpr MeshAxis kData = MeshAxis::kData, kModel = MeshAxis::kModel;
constexpr int64_t kVocabulary = 14, kWidth = 8, kSteps = 5;
const PartitionSpec kColumns = {{kModel}, {kData}}, kRows = {{kData}, {kModel}};

/// [..., kWidth] -> the same
struct GatedImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor inner = at::silu(gate(x)) * up(x);
    at::Tensor result = down(inner);
    marks = {sharding_of(inner), sharding_of(result)};
    inner_values = inner.detach();
    return x + result;
  }
  HookedLinear gate = register_module("gate", HookedLinear(kWidth, 12));
  HookedLinear up = register_module("up", HookedLinear(kWidth, 12));
  HookedLinear down = register_module("down", HookedLinear(12, kWidth));
  std::vector<std::optional<Sharding>> marks;
  at::Tensor inner_values;
};

/// Of this library's layers.
struct PlainImpl : torch::nn::Module {
  static std::shared_ptr<nn::Linear> linear(int64_t in, int64_t out) {
    return std::make_shared<nn::Linear>(in, out, nn::Compute(), nn::LinearForm{.biased = true});
  }
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor inner = first->forward(x);
    of_first = sharding_of(inner);
    return x + last->forward(inner.tanh());
  }
  std::optional<Sharding> of_first;
  std::shared_ptr<nn::Linear> first = register_module("first", linear(kWidth, 16));
  std::shared_ptr<nn::Linear> last = register_module("last", linear(16, kWidth));
};

/// ids: [B, T] -> scores [B, T, kVocabulary]
struct NetImpl : torch::nn::Module {
  NetImpl() {
    const at::NoGradGuard no_grad;
    int64_t first = 0;
    for (at::Tensor parameter : parameters()) {
      parameter.copy_(at::arange(first, first + parameter.numel()).sin().mul(0.4).view_as(parameter));
      first += parameter.numel();
    }
  }
  at::Tensor forward(const at::Tensor& ids) { return head(norm(plain(gated(table(ids))))); }
  nn::Hooked<torch::nn::EmbeddingImpl> table =
      register_module("table", nn::Hooked<torch::nn::EmbeddingImpl>(kVocabulary, kWidth));
  nn::Hooked<GatedImpl> gated = register_module("gated", nn::Hooked<GatedImpl>());
  nn::Hooked<PlainImpl> plain = register_module("plain", nn::Hooked<PlainImpl>());
  torch::nn::LayerNorm norm =
      register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})));
  HookedLinear head = register_module("head", HookedLinear(kWidth, kVocabulary));
};
using Net = nn::Hooked<NetImpl>;

void mark(Net& net, const comm::Mesh& mesh) {
  mark_sharding(net->table->weight, mesh, {{kModel}, {}});
  for (const HookedLinear& layer : {net->gated->gate, net->gated->up, net->head}) {
    mark_sharding(layer->weight, mesh, kColumns);
  }
  mark_sharding(net->gated->down->weight, mesh, kRows);
  mark_sharding(net->plain->first->weight(), mesh, kColumns);
  mark_sharding(net->plain->last->weight(), mesh, kRows);
}

const nn::ParallelPlan kSamePlan = {{"table", nn::RowwiseParallel{.input = nn::Replicate{}}},
                                    {"gated.gate", nn::ColwiseParallel{}},
                                    {"gated.up", nn::ColwiseParallel{}},
                                    {"gated.down", nn::RowwiseParallel{}},
                                    {"plain.first", nn::ColwiseParallel{}},
                                    {"plain.last", nn::RowwiseParallel{}},
                                    {"head", nn::ColwiseParallel{.output = nn::Replicate{}}}};

struct Training {
  std::vector<double> losses, norms;
  std::map<std::string, at::Tensor> weights;
};

at::Tensor batch(int64_t step) { return testing::token_rows(step * 8, 8, 5, kVocabulary); }

at::Tensor loss_of(Net& net, const at::Tensor& ids, const at::Tensor& targets) {
  return at::cross_entropy_loss(net->forward(ids).reshape({-1, kVocabulary}), targets.reshape({-1}));
}

Training in_one_process() {
  Training result;
  Net net;
  for (int64_t step = 0; step < kSteps; ++step) {
    net->zero_grad();
    const at::Tensor loss = loss_of(net, batch(step).narrow(1, 0, 4), batch(step).narrow(1, 1, 4));
    loss.backward();
    const at::NoGradGuard no_grad;
    double squares = 0;
    for (at::Tensor parameter : net->parameters()) {
      squares += parameter.grad().square().sum().item<double>();
      parameter.sub_(parameter.grad(), 0.1);
    }
    result.losses.push_back(loss.item<double>());
    result.norms.push_back(std::sqrt(squares));
  }
  for (const auto& item : net->named_parameters()) result.weights[item.key()] = item.value();
  return result;
}

Training train(Net& net, Engine& engine, const comm::Mesh& mesh) {
  Training result;
  const auto world_size = mesh.world()->world_size();
  for (int64_t step = 0; step < kSteps; ++step) {
    engine.zero_gradients();
    const at::Tensor targets = mark_sharding(batch(step).narrow(1, 1, 4).contiguous(), mesh, batch_spec());
    const at::Tensor loss = loss_of(net, batch(step).narrow(1, 0, 4), targets);
    loss.backward();
    result.norms.push_back(grad_norm(engine));
    testing::sgd_on_shards(engine, 0.1);
    at::Tensor sum = loss.detach().to(at::kDouble).reshape({1});
    mesh.world()->all_reduce(sum, comm::ReduceOp::kSum, {.unit = "loss"})->wait();
    result.losses.push_back(sum.item<double>() / world_size);
  }
  for (auto& [name, tensor] : full_state_dict(engine)) result.weights[name] = tensor;
  return result;
}

SpmdOptions options_of(const char* layout) {
  SpmdOptions options;
  options.auto_wrap_policy = stage_type_policy({"Gated", "Plain"});
  options.shard.layout = layout;
  return options;
}

const std::vector<comm::MeshOptions> kMeshes = {
    {.dcn = 1, .data = 1, .model = 2}, {.dcn = 1, .data = 2, .model = 2}, {.dcn = 2, .data = 1, .model = 2}};

TEST(ModelMarks, TrainAsOneProcessDoes) {
  const Training expected = in_one_process();
  for (const comm::MeshOptions& options : kMeshes) {
    for (const char* layout : {"per_parameter", "flat"}) {
      on_mesh(options, [&](const comm::Mesh& mesh) {
        Net net;
        mark(net, mesh);
        const auto engine = spmd_fully_shard(*net, mesh, {}, options_of(layout));
        const Training found = train(net, *engine, mesh);
        for (size_t i = 0; i < expected.losses.size(); ++i) {
          EXPECT_NEAR(found.losses[i], expected.losses[i], 1e-6 * expected.losses[i]) << i;
          EXPECT_NEAR(found.norms[i], expected.norms[i], 1e-5 * expected.norms[i]) << i;
        }
        ASSERT_EQ(found.weights.size(), expected.weights.size());
        for (const auto& [name, weight] : found.weights) {
          EXPECT_TRUE(at::allclose(weight, expected.weights.at(name), 1e-5, 1e-5)) << name;
        }
      });
    }
  }
}

TEST(ModelMarks, AreThePlanThatTheySay) {
  on_mesh({.dcn = 1, .data = 2, .model = 2}, [](const comm::Mesh& mesh) {
    Net marked, planned;
    mark(marked, mesh);
    const auto engine = spmd_fully_shard(*marked, mesh, {}, options_of("flat"));
    SpmdOptions options = options_of("flat");
    options.shard.parts = nn::parallelize(*planned, kSamePlan, mesh.model());
    const auto expected_engine = spmd_fully_shard(*planned, mesh, {}, options);
    EXPECT_EQ(train(marked, *engine, mesh).losses, train(planned, *expected_engine, mesh).losses);
  });
}

TEST(ModelMarks, FollowThroughTheLayers) {
  on_mesh({.dcn = 1, .data = 2, .model = 2}, [](const comm::Mesh& mesh) {
    Net net, whole;
    mark(net, mesh);
    const auto engine = spmd_fully_shard(*net, mesh, {}, options_of("per_parameter"));
    const at::Tensor ids = batch(0).narrow(1, 0, 4);
    const at::Tensor scores = net->forward(ids), expected = whole->forward(ids);
    const Sharding inner = net->gated->marks[0].value(), result = net->gated->marks[1].value();
    EXPECT_EQ(to_string(inner.spec), "(dcn x data, whole, model)");
    EXPECT_EQ(inner.global_shape, (std::vector<int64_t>{8, 4, 12}));
    EXPECT_EQ(to_string(result.spec), "(dcn x data, whole, whole)");
    EXPECT_EQ(to_string(sharding_of(scores)->spec), "(dcn x data)")
        << "not followed through this library's layers";
    EXPECT_EQ(to_string(net->plain->of_first.value().spec), "(dcn x data, whole, model)")
        << "up to their sums";
    EXPECT_EQ(net->plain->of_first->global_shape, (std::vector<int64_t>{8, 4, 16}));
    EXPECT_TRUE(at::allclose(full_tensor(scores, mesh), expected, 1e-5, 1e-6));
    const at::Tensor part = mark_local_shard(net->gated->inner_values, mesh, inner.spec);
    EXPECT_TRUE(at::allclose(full_tensor(part, mesh), whole->gated->inner_values, 1e-5, 1e-6));
    const std::string text = spmd_debug(*engine, {{"inner", part}});
    const std::string rank = concat("rank ", mesh.world()->rank(), "  ");
    for (const char* line :
         {"gated.up.weight  global [12, 8]  local [6, 4]  (model, data)  float32\n",
          "gated.down.weight  global [8, 12]  local [4, 6]  (data, model)  float32\n",
          "gated.up.bias  global [12]  local [6]  (model)  float32\n",
          "gated.down.bias  global [8]  local [8]  (whole)  float32\n",
          "table.weight  global [14, 8]  local [7, 8]  (model, whole)  float32\n",
          "inner  global [8, 4, 12]  local [4, 4, 6]  (dcn x data, whole, model)  float32\n"}) {
      EXPECT_THAT(text, HasSubstr(rank + line));
    }
  });
}

TEST(ModelMarks, CutAnActivationWhoseGradientIsWhole) {
  on_mesh({.dcn = 1, .data = 2, .model = 2}, [](const comm::Mesh& mesh) {
    const at::Tensor weight = at::full({4, 8}, 2.0f).requires_grad_();
    const at::Tensor values = at::arange(32, at::kFloat).view({4, 8});
    const at::Tensor rows = mark_sharding(values * weight, mesh, batch_spec());
    const at::Tensor part = mark_sharding(rows, mesh, {{MeshAxis::kDcn, kData}, {kModel}});
    EXPECT_EQ(part.sizes(), at::IntArrayRef({2, 4}));
    EXPECT_TRUE(at::equal(full_tensor(part, mesh), (values * weight).detach()));
    const at::Tensor at_once = mark_sharding(values * weight, mesh, {{MeshAxis::kDcn, kData}, {kModel}});
    EXPECT_TRUE(at::equal(at_once, part));
    for (const at::Tensor& cut : {part, at_once}) {
      weight.mutable_grad() = at::Tensor();
      // One loss for the ranks of model, that of these rows.
      parallel::reduce_from_ranks(cut.square().sum(), {mesh.model(), "loss"}).backward();
      EXPECT_TRUE(at::allclose(weight.grad(), values.square() * 2 * 2 / 2)) << "the mean of two losses";
    }
  });
}

TEST(ModelMarks, ARowParallelLayerTakesACutActivation) {
  on_mesh({.dcn = 1, .data = 1, .model = 2}, [](const comm::Mesh& mesh) {
    struct AloneImpl : torch::nn::Module {
      at::Tensor forward(const at::Tensor& x) {
        return last(cuts ? mark_sharding(x, *cuts, {{MeshAxis::kDcn, kData}, {kModel}}) : x);
      }
      HookedLinear last = register_module("last", HookedLinear(kWidth, 3));
      const comm::Mesh* cuts = nullptr;
    };
    const at::Tensor x = at::arange(16, at::kFloat).view({2, 8}).sin();
    for (const comm::Mesh* cuts : {static_cast<const comm::Mesh*>(nullptr), &mesh}) {
      nn::Hooked<AloneImpl> alone;
      at::NoGradGuard no_grad;
      alone->last->weight.copy_(at::arange(24).cos().view({3, 8}));
      alone->last->bias.fill_(1);
      const at::Tensor expected = alone->forward(x);
      alone->cuts = cuts;
      mark_sharding(alone->last->weight, mesh, kRows);
      const auto engine = spmd_fully_shard(*alone, mesh);
      EXPECT_TRUE(at::allclose(alone->forward(x), expected, 1e-5, 1e-6));
    }
  });
}

}  // namespace
}  // namespace fsdp::shard::sharing
