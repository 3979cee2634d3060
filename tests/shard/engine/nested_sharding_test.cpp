// fully_shard() on modules one by one, inner ones first: PyTorch's idiom.

#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules.h>

#include "base/tensor/rectangle_view.h"
#include "base/tensor/storage.h"
#include "shard/engine/engine_sizes.h"
#include "shard/engine/fully_shard.h"
#include "shard/spmd/spmd_fully_shard.h"
#include "shard/state/state_dict.h"
#include "support/layout_under_test.h"
#include "support/on_mesh.h"
#include "support/readable.h"
#include "support/sharded_run.h"

namespace fsdp::shard::one_by_one {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::on_layout_under_test;
using testing::on_mesh;
using testing::refusal_of;
using Names = std::vector<std::string>;

constexpr int64_t kWidth = 8, kRows = 12, kSteps = 3;
constexpr double kRate = 0.1;

struct BlockImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) { return x + out(at::gelu(in(x))); }
  nn::Hooked<torch::nn::LinearImpl> in =
      register_module("in", nn::Hooked<torch::nn::LinearImpl>(kWidth, 3 * kWidth));
  torch::nn::Linear out = register_module("out", torch::nn::Linear(3 * kWidth, kWidth));
};
struct NetImpl : torch::nn::Module {
  NetImpl() {
    for (int64_t i = 0; i < 3; ++i) {
      blocks.push_back(register_module("block" + std::to_string(i), nn::Hooked<BlockImpl>()));
    }
    at::NoGradGuard no_grad;
    int64_t first = 0;  // the same on all ranks, which as threads would draw from one generator
    for (at::Tensor parameter : parameters()) {
      parameter.copy_(at::arange(first, first + parameter.numel()).sin().div(3).view_as(parameter));
      first += parameter.numel();
    }
  }
  at::Tensor forward(at::Tensor x) {
    for (auto& block : blocks) x = block(x);
    return head(x);
  }
  std::vector<nn::Hooked<BlockImpl>> blocks;
  torch::nn::Linear head = register_module("head", torch::nn::Linear(kWidth, 1));
};
using Net = nn::Hooked<NetImpl>;

at::Tensor rows_of(int64_t step, int rank, int ranks) {
  const at::Tensor all =
      at::arange(kRows * kWidth, at::kFloat).mul(0.7).add(step).sin().view({kRows, kWidth});
  return all.narrow(0, rank * kRows / ranks, kRows / ranks);
}

Names unit_names(const Engine& engine) {
  Names names;
  for (const auto& unit : engine.units()) names.push_back(unit->name());
  return names;
}

std::shared_ptr<Engine> shard(torch::nn::Module& module, const comm::Mesh& mesh,
                              const ShardOptions& options = {}) {
  return testing::shard_under_test(module, options, mesh);
}

/// for (auto& block : blocks) fully_shard(*block); fully_shard(*net);
std::shared_ptr<Engine> shard_one_by_one(Net& net, const comm::Mesh& mesh, const ShardOptions& options = {}) {
  for (auto& block : net->blocks) shard(*block, mesh, options);
  return shard(*net, mesh, options);
}

std::map<std::string, at::Tensor> trained_plain() {
  Net net;
  for (int64_t step = 0; step < kSteps; ++step) {
    net->zero_grad();
    net(rows_of(step, 0, 1)).square().mean().backward();
    at::NoGradGuard no_grad;
    for (at::Tensor parameter : net->parameters()) parameter.sub_(parameter.grad(), kRate);
  }
  std::map<std::string, at::Tensor> weights;
  for (const auto& parameter : net->named_parameters()) weights[parameter.key()] = parameter.value().detach();
  return weights;
}

TEST(NestedSharding, EachCallIsAUnitAndTrainsAsOneProcessDoes) {
  const auto expected = trained_plain();
  for (int64_t ranks : {1, 2, 3}) {
    on_mesh({.dcn = 1, .data = ranks}, [&](const comm::Mesh& mesh) {
      Net net;
      auto engine = shard_one_by_one(net, mesh);
      EXPECT_THAT(unit_names(*engine), ElementsAre("root", "block0", "block1", "block2"));
      for (int64_t step = 0; step < kSteps; ++step) {
        engine->zero_gradients();
        net(rows_of(step, mesh.world()->rank(), mesh.world()->world_size())).square().mean().backward();
        EXPECT_EQ(engine->live_unsharded_bytes(), 0);
        testing::sgd_on_shards(*engine, kRate);
      }
      for (const auto& [name, tensor] : full_state_dict(*engine)) {
        EXPECT_TRUE(at::allclose(tensor, expected.at(name), 1e-5, 1e-6)) << name;
      }
    });
  }
}

TEST(NestedSharding, GathersEachUnitOnceAPass) {
  on_mesh({.dcn = 1, .data = 2}, [](const comm::Mesh& mesh) {
    Net net, at_once;
    auto engine = shard_one_by_one(net, mesh);
    auto expected = shard(*at_once, mesh, {.wrap_stages = {"Block"}});
    for (int64_t step = 0; step < 2; ++step) {
      for (auto [model, each] : {std::pair(&net, engine.get()), {&at_once, expected.get()}}) {
        each->zero_gradients();
        each->reset_counters();
        (*model)(rows_of(step, mesh.world()->rank(), 2)).square().mean().backward();
      }
    }
    EXPECT_EQ(engine->traffic(), expected->traffic());
  });
}

TEST(NestedSharding, AnInnerEngineWorksUntilTheOuterCallAndEndsWithIt) {
  on_mesh({.dcn = 1, .data = 2}, [](const comm::Mesh& mesh) {
    Net net;
    auto inner = shard(*net->blocks[0], mesh);
    net->blocks[0](rows_of(0, mesh.world()->rank(), 2)).square().mean().backward();
    testing::sgd_on_shards(*inner, kRate);
    inner->zero_gradients();
    const FullStateDict before = full_state_dict(*inner);
    auto engine = shard(*net, mesh);
    EXPECT_TRUE(inner->units().empty());
    std::map<std::string, at::Tensor> after;
    for (const auto& [name, tensor] : full_state_dict(*engine)) after[name] = tensor;
    for (const auto& [name, tensor] : before)
      EXPECT_TRUE(at::equal(after.at("block0." + name), tensor)) << name;
  });
}

TEST(NestedSharding, UnitsKeepTheOptionsOfTheirCall) {
  on_mesh({.dcn = 1, .data = 2}, [](const comm::Mesh& mesh) {
    Net net;
    shard(*net->blocks[0], mesh, {.reshard_after_forward = false});
    shard(*net->blocks[1], mesh, {.strategy = "no_shard"});
    shard(*net->blocks[2], mesh, {.mixed_precision = {.param_dtype = "bfloat16"}});
    auto engine =
        shard(*net, mesh, {.mixed_precision = {.param_dtype = "bfloat16", .reduce_dtype = "bfloat16"}});
    ASSERT_THAT(unit_names(*engine), ElementsAre("root", "block0", "block1", "block2"));
    const auto& units = engine->units();
    EXPECT_EQ(units[0]->options().storage.param_dtype, at::kBFloat16);
    EXPECT_EQ(units[0]->options().storage.reduce_dtype, at::kBFloat16);
    EXPECT_EQ(units[1]->options().storage.param_dtype, at::kFloat) << "as its call left it";
    EXPECT_EQ(units[1]->options().storage.reduce_dtype, at::kFloat);
    EXPECT_TRUE(units[1]->options().stays_after_forward);
    EXPECT_EQ(units[2]->options().strategy, Strategy::kNoShard);
    EXPECT_EQ(units[3]->options().storage.param_dtype, at::kBFloat16);
    EXPECT_EQ(units[3]->options().storage.reduce_dtype, at::kFloat);
    EXPECT_FALSE(units[3]->options().stays_after_forward);
    net(rows_of(0, mesh.world()->rank(), 2)).to(at::kFloat).square().mean().backward();
  });
}

TEST(NestedSharding, TheOuterPolicyIsNotAskedInsideOfInnerModules) {
  on_mesh({.dcn = 1, .data = 2}, [](const comm::Mesh& mesh) {
    Net net;
    shard(*net->blocks[0], mesh);
    auto engine = shard(*net, mesh, {.min_num_params = 1});
    EXPECT_THAT(unit_names(*engine),
                ElementsAre("root", "block0", "block1", "block1.in", "block2", "block2.in"));
  });
}

TEST(NestedSharding, UnitsThatAnInnerCallChoseStayUnits) {
  on_mesh({.dcn = 1, .data = 2}, [](const comm::Mesh& mesh) {
    Net net;
    shard(*net->blocks[1], mesh, {.min_num_params = 1});
    shard(*net->blocks[2]->in, mesh);
    shard(*net->blocks[2], mesh);
    auto engine = shard(*net, mesh);
    EXPECT_THAT(unit_names(*engine), ElementsAre("root", "block1", "block1.in", "block2", "block2.in"));
  });
}

TEST(NestedSharding, GivesTheBlocksValuesToOneUnitAfterAnother) {
  on_mesh({.dcn = 1, .data = 2}, [](const comm::Mesh& mesh) {
    Net net;
    auto engine = shard_one_by_one(net, mesh);
    for (const auto& unit : engine->units()) {
      for (const auto& parameter : unit->storage().parameters()) {
        EXPECT_FALSE(testing::is_readable(parameter.tensor)) << parameter.name;
      }
    }
    Net plain;
    const auto values = plain->named_parameters();
    for (const auto& [name, tensor] : full_state_dict(*engine))
      EXPECT_TRUE(at::equal(tensor, values[name])) << name;
  });
}

TEST(NestedSharding, TheSameModuleTwiceIsRefused) {
  for (int64_t ranks : {1, 2}) {
    on_mesh({.dcn = 1, .data = ranks}, [](const comm::Mesh& mesh) {
      Net net;
      auto engine = shard_one_by_one(net, mesh);
      const auto again = refusal_of([&] { shard(*net, mesh); });
      EXPECT_EQ(again.kind, ErrorKind::kUsage);
      EXPECT_THAT(
          again.text,
          HasSubstr("fully_shard(): expected a module that is not sharded; found one of type Net that is"));
      const auto inner_after_outer = refusal_of([&] { shard(*net->blocks[1], mesh); });
      EXPECT_THAT(inner_after_outer.text, HasSubstr("shard inner modules before those around them"));
      net(rows_of(0, mesh.world()->rank(), mesh.world()->world_size())).sum().backward();  // it still trains
      engine->unshard();
      shard(*net, mesh);
    });
  }
}

TEST(NestedSharding, AnOptionOfWholeEnginesIsRefusedUnlessBothHaveIt) {
  on_mesh({.dcn = 1, .data = 2}, [](const comm::Mesh& mesh) {
    Net net;
    shard(*net->blocks[0], mesh, {.forward_prefetch = "none"});
    const auto refused = refusal_of([&] { shard(*net, mesh); });
    EXPECT_THAT(
        refused.text,
        HasSubstr("fully_shard(): expected fsdp.forward_prefetch = none, with which block0 was sharded"));
    shard(*net, mesh, {.forward_prefetch = "none"});
  });
}

TEST(NestedSharding, AnInnerEngineInUseIsRefusedBeforeAnyEnds) {
  on_mesh({.dcn = 1, .data = 2}, [](const comm::Mesh& mesh) {
    Net net;
    for (size_t i = 0; i < 2; ++i) shard(*net->blocks[i], mesh);
    const at::Tensor rows = rows_of(0, mesh.world()->rank(), 2);
    const at::Tensor loss = net->blocks[1](rows).sum();
    EXPECT_THAT(refusal_of([&] { shard(*net, mesh); }).text,
                HasSubstr("fully_shard(): expected an engine between steps"));
    net->blocks[0](rows).sum().backward();
    loss.backward();
    shard(*net, mesh);
    net(rows).sum().backward();
  });
}

TEST(NestedSharding, AnotherMeshIsRefused) {
  on_mesh({.dcn = 1, .data = 2}, [](const comm::Mesh& mesh) {
    Net net;
    shard(*net->blocks[0], mesh);
    const comm::Mesh other({.dcn = 2, .data = 1}, mesh.world());
    EXPECT_THAT(refusal_of([&] { shard(*net, other); }).text,
                HasSubstr("fully_shard(): expected the mesh with which block0 was sharded"));
  });
}

TEST(NestedSharding, OneFunctionShardsAll) {
  on_mesh({.dcn = 1, .data = 2}, [](const comm::Mesh& mesh) {
    Net net;
    shard(*net->blocks[0], mesh);
    EXPECT_THAT(
        refusal_of([&] { spmd_fully_shard(*net, mesh); }).text,
        HasSubstr(
            "expected inner modules that the same function has sharded; found block0 sharded by fully_shard()"));
  });
}

TEST(NestedSharding, AnEngineThatOutlivesItsModuleIsNoneOfAnotherAtItsAddress) {
  on_mesh({.dcn = 1, .data = 1}, [](const comm::Mesh& mesh) {
    std::vector<std::shared_ptr<Engine>> engines;
    for (int i = 0; i < 20; ++i) {
      Net net;
      engines.push_back(shard(*net, mesh));
    }
  });
}

/// The values of another module.
class ValuesOf final : public ParameterSource {
 public:
  explicit ValuesOf(torch::nn::Module& module) : values_(module.named_parameters()) {}
  void read(const NamedParameter& parameter, const std::vector<util::Rectangle>& parts,
            const at::Tensor& out) override {
    at::NoGradGuard no_grad;
    names.push_back(parameter.name);
    const at::Tensor whole = values_[parameter.name].detach();
    util::for_each_part(parts, out, [&](const util::Rectangle& part, const at::Tensor& values) {
      values.view({part.height(), part.length()}).copy_(util::rectangle_view(whole, part));
    });
  }

  Names names;

 private:
  torch::OrderedDict<std::string, at::Tensor> values_;
};

TEST(NestedSharding, DeferredParametersAreReadByTheCallThatShardsThem) {
  on_mesh({.dcn = 1, .data = 2}, [](const comm::Mesh& mesh) {
    Net plain, net;
    for (const auto& parameter : net->parameters()) {
      util::point_at(parameter, at::empty(parameter.sizes(), at::TensorOptions().device(at::kMeta)));
    }
    for (size_t i = 0; i < 3; ++i) {
      ValuesOf block(*plain->blocks[i]);
      fully_shard(*net->blocks[i], on_layout_under_test({}), mesh, nullptr, {.source = &block});
      EXPECT_EQ(block.names.size(), 4u);
    }
    ValuesOf rest(*plain);
    auto engine = fully_shard(*net, on_layout_under_test({}), mesh, nullptr, {.source = &rest});
    EXPECT_THAT(rest.names, ElementsAre("head.weight", "head.bias"));
    const auto values = plain->named_parameters();
    for (const auto& [name, tensor] : full_state_dict(*engine))
      EXPECT_TRUE(at::equal(tensor, values[name])) << name;
  });
}

}  // namespace
}  // namespace fsdp::shard::one_by_one
