// Modules sharded one by one, inner ones first, and what the outer call keeps of the inner ones.

#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>

#include "base/tensor/rectangle_view.h"
#include "base/util/error.h"
#include "model/nn/recompute.h"
#include "shard/engine/fully_shard.h"
#include "shard/nested_towers.h"
#include "shard/spmd/spmd_module.h"
#include "shard/state/state_dict.h"
#include "support/log_lines.h"
#include "support/on_mesh.h"
#include "support/readable.h"
#include "support/sharded_run.h"

namespace fsdp::shard::nesting {
namespace {

using comm::MeshAxis;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::on_mesh;
using testing::refusal_of;
using Names = std::vector<std::string>;

/// Two inputs of [B, kWidth]; returns how well they match, [B, 1], and their sum.
struct TwoTowers final : torch::nn::Module {
  explicit TwoTowers(int64_t* tower_calls = nullptr, int64_t* block_calls = nullptr)
      : left(register_module("left", std::make_shared<Tower>(tower_calls, block_calls))),
        right(register_module("right", std::make_shared<Tower>(tower_calls, block_calls))) {
    at::NoGradGuard no_grad;
    int64_t first = 0;  // the same on all ranks, which as threads would draw from one generator
    for (at::Tensor parameter : parameters()) {
      parameter.copy_(at::arange(first, first + parameter.numel()).sin().div(3).view_as(parameter));
      first += parameter.numel();
    }
  }
  std::tuple<at::Tensor, at::Tensor> forward(const at::Tensor& a, const at::Tensor& b) {
    const at::Tensor x = left->forward(a), y = right->forward(b);
    return {match(x * y), x + y};
  }
  std::shared_ptr<Tower> left, right;
  torch::nn::Linear match = register_module("match", torch::nn::Linear(kWidth, 1));
};

at::Tensor loss_of(const std::tuple<at::Tensor, at::Tensor>& output, const at::Tensor& targets) {
  return at::mse_loss(std::get<0>(output), targets) + std::get<1>(output).square().mean() * 0.1;
}

constexpr int64_t kSteps = 4;
constexpr double kRate = 0.05;

// The middle modules are recomputed, and each of the three levels marks its output itself.
TEST(SpmdNesting, TwoTowersNestedThreeDeepByHandTrainAsOneProcessDoes) {
  TwoTowers plain;
  std::vector<double> losses;
  for (int64_t step = 0; step < kSteps; ++step) {
    const Batch batch(step);
    plain.zero_grad();
    const at::Tensor loss = loss_of(plain.forward(batch.a, batch.b), batch.targets);
    loss.backward();
    losses.push_back(loss.item<double>());
    at::NoGradGuard no_grad;
    for (at::Tensor parameter : plain.parameters()) parameter.sub_(parameter.grad(), kRate);
  }
  const auto expected = plain.named_parameters();

  for (const comm::MeshOptions& shape : {comm::MeshOptions{1, 2}, {2, 2}, {1, 1}}) {
    on_mesh(shape, [&](const comm::Mesh& mesh) {
      int64_t tower_calls = 0, block_calls = 0, tower_marks = 0, block_marks = 0, marks = 0;
      auto towers = std::make_shared<TwoTowers>(&tower_calls, &block_calls);
      for (const auto& tower : {towers->left, towers->right}) {
        for (size_t i = 0; i < 2; ++i) {
          spmd_fully_shard(*tower->blocks->ptr<Block>(i), mesh,
                           [&](const at::Tensor& output, const comm::Mesh& on) {
                             ++block_marks;
                             mark_sharding(output, on, batch_spec());
                           });
        }
        spmd_fully_shard(*tower, mesh, [&](const at::Tensor& output, const comm::Mesh& on) {
          ++tower_marks;
          return mark_sharding(output, on, {{MeshAxis::kDcn, MeshAxis::kData}, {}});
        });
        tower->attach(std::make_shared<nn::Recompute>());
      }
      SpmdFullyShardedDataParallel<TwoTowers> sharded(towers, mesh,
                                                      [&](const at::Tensor& output, const comm::Mesh& on) {
                                                        ++marks;
                                                        return mark_sharding(output, on, batch_spec());
                                                      });

      Names units;
      for (const auto& unit : sharded.engine().units()) units.push_back(unit->name());
      EXPECT_THAT(units, ElementsAre("root", "root.replicated", "left", "left.blocks.0", "left.blocks.1",
                                     "right", "right.blocks.0", "right.blocks.1"));
      for (int64_t step = 0; step < kSteps; ++step) {
        const Batch batch(step);
        sharded.engine().zero_gradients();
        const auto output = sharded.forward(batch.a, batch.b);
        EXPECT_EQ(sharding_of(std::get<0>(output))->global_shape, (std::vector<int64_t>{kBatch, 1}));
        EXPECT_EQ(std::get<0>(output).size(0), kBatch / mesh.world()->world_size());
        const at::Tensor loss = loss_of(output, mark_sharding(batch.targets, mesh, batch_spec()));
        loss.backward();
        testing::sgd_on_shards(sharded.engine(), kRate);
        at::Tensor sum = loss.detach().to(at::kDouble).reshape({1});
        mesh.world()->all_reduce(sum, comm::ReduceOp::kSum, {.unit = "loss"})->wait();
        EXPECT_NEAR(sum.item<double>() / mesh.world()->world_size(), losses[step], 1e-6);
      }
      for (const auto& [name, tensor] : full_state_dict(sharded.engine())) {
        EXPECT_LE(largest_difference(tensor, expected[name].detach()), 1e-6) << name;
      }
      // Two towers of two blocks; backward runs each again.
      EXPECT_EQ(tower_calls, 2 * 2 * kSteps);
      EXPECT_EQ(block_calls, 2 * 4 * kSteps);
      EXPECT_EQ(tower_marks, 2 * kSteps);
      EXPECT_EQ(block_marks, block_calls);
      EXPECT_EQ(marks, kSteps);
    });
  }
}

/// Notes whether a parameter has memory when the module is called.
class MemorySpy final : public nn::CallHook {
 public:
  explicit MemorySpy(at::Tensor parameter) : parameter_(std::move(parameter)) {}
  std::shared_ptr<void> before(const nn::CallTensors&) override {
    is_gathered.push_back(testing::is_readable(parameter_));
    return nullptr;
  }
  void after(const nn::CallTensors&) override {}

  std::vector<bool> is_gathered;

 private:
  at::Tensor parameter_;
};

TEST(SpmdNesting, HooksOfOthersStayOutsideOrInsideOfTheUnit) {
  on_mesh({.dcn = 1, .data = 2}, [](const comm::Mesh& mesh) {
    Tower tower;
    Block& block = *tower.blocks->ptr<Block>(0);
    const auto outside = std::make_shared<MemorySpy>(block.in->weight);
    const auto inside = std::make_shared<MemorySpy>(block.in->weight);
    SpmdOptions options;
    options.shard.forward_prefetch = "none";
    block.attach(outside);
    spmd_fully_shard(block, mesh, {}, options);
    block.attach(inside);
    spmd_fully_shard(tower, mesh, {}, options);
    for (int i = 0; i < 2; ++i) {
      at::NoGradGuard no_grad;
      tower.forward(at::ones({kBatch, kWidth}));
    }
    EXPECT_THAT(outside->is_gathered, ElementsAre(false, false));
    EXPECT_THAT(inside->is_gathered, ElementsAre(true, true));
  });
}

TEST(SpmdNesting, AnEngineThatEndsDetachesItsOwnHooksOnly) {
  on_mesh({.dcn = 1, .data = 2}, [](const comm::Mesh& mesh) {
    auto values = with_values(std::make_shared<Block>());
    auto block = with_values(std::make_shared<Block>());
    const auto spy = std::make_shared<MemorySpy>(block->in->weight);
    block->attach(spy);
    const auto engine = fully_shard(*block, {.layout = "per_parameter"}, mesh);
    engine->unshard();
    const at::Tensor x = Batch(0).a;
    EXPECT_TRUE(at::equal(block->forward(x), values->forward(x)));
    EXPECT_THAT(spy->is_gathered, ElementsAre(true));
  });
}

struct ThreeBlocks final : nn::Stage {
  ThreeBlocks() {
    for (int i = 0; i < 3; ++i)
      register_module(std::to_string(i), blocks.emplace_back(std::make_shared<Block>()));
  }
  std::string type_name() const override { return "blocks"; }
  at::Tensor compute(const at::Tensor& input, const nn::StageContext&) override {
    at::Tensor x = input;
    for (const auto& block : blocks) x = block->forward(x.cumsum(1) / kWidth);  // of no determined mark
    return x;
  }
  std::vector<std::shared_ptr<Block>> blocks;
};

TEST(SpmdNesting, OptionsOfUnitsAndParametersAreThoseOfTheInnerCall) {
  on_mesh({.dcn = 1, .data = 2}, [](const comm::Mesh& mesh) {
    ThreeBlocks model;
    SpmdOptions stays, cuts_all, first;
    stays.shard.reshard_after_forward = false;
    cuts_all.shard.shard_1d_parameters = true;
    first.shard.shard_dimension = "first";
    spmd_fully_shard(*model.blocks[0], mesh, {}, stays);
    spmd_fully_shard(*model.blocks[1], mesh, {}, cuts_all);
    spmd_fully_shard(*model.blocks[2], mesh, {}, first);
    const auto engine = spmd_fully_shard(model, mesh);

    std::map<std::string, Segment> segments;
    for (const Segment& segment : engine->segments()) segments[segment.name] = segment;
    const auto unit_of = [&](const std::string& name) {
      return engine->units()[segments.at(name).unit]->name();
    };
    EXPECT_EQ(unit_of("0.in.bias"), "root.replicated");
    EXPECT_EQ(unit_of("1.in.bias"), "1");
    // out.weight is [W, 2 W], whose second dimension is the largest.
    EXPECT_EQ(segments.at("1.out.weight").range.rows, kWidth);
    EXPECT_EQ(segments.at("2.out.weight").range.rows, 1);

    model.forward(at::ones({kBatch, kWidth})).sum().backward();
    std::map<std::string, int64_t> gathers;
    for (const auto& unit : engine->units()) gathers[unit->name()] = unit->traffic().all_gathers;
    EXPECT_EQ(gathers.at("0"), 1) << "stays gathered for backward";
    EXPECT_EQ(gathers.at("1"), 2) << "is gathered again";
  });
}

TEST(SpmdNesting, ParametersThatAnInnerCallReplicatedByNameStayReplicatedInTheFlatLayout) {
  on_mesh({.dcn = 1, .data = 2}, [](const comm::Mesh& mesh) {
    Tower tower;
    SpmdOptions flat, replicated;
    flat.shard.layout = replicated.shard.layout = Layout::kFlat;
    replicated.shard.replicated_parameters = {"in.bias"};
    spmd_fully_shard(*tower.blocks->ptr<Block>(0), mesh, {}, replicated);
    spmd_fully_shard(*tower.blocks->ptr<Block>(1), mesh, {}, flat);
    const auto engine = spmd_fully_shard(tower, mesh, {}, flat);
    Names whole;
    for (const Segment& segment : engine->segments()) {
      if (engine->units()[segment.unit]->name() == "root.replicated") whole.push_back(segment.name);
    }
    EXPECT_THAT(whole, ElementsAre("blocks.0.in.bias"));
  });
}

TEST(SpmdNesting, UnitsThatAnInnerPolicyChoseStayUnits) {
  on_mesh({.dcn = 1, .data = 2}, [](const comm::Mesh& mesh) {
    auto towers = std::make_shared<TwoTowers>();
    SpmdOptions blocks;
    blocks.auto_wrap_policy = stage_type_policy({"block"});
    spmd_fully_shard(*towers->left, mesh, {}, blocks);
    spmd_fully_shard(*towers->right, mesh);
    // The outer policy is not asked about the blocks inside of towers, which are sharded already.
    SpmdFullyShardedDataParallel<TwoTowers> sharded(towers, mesh, {}, blocks);
    Names units;
    for (const auto& unit : sharded.engine().units()) units.push_back(unit->name());
    EXPECT_THAT(units,
                ElementsAre("root", "root.replicated", "left", "left.blocks.0", "left.blocks.1", "right"));
  });
}

TEST(SpmdNesting, AnOuterPolicyIsAskedAboutTheModulesOutsideOfInnerOnesOnly) {
  on_mesh({.dcn = 1, .data = 2}, [](const comm::Mesh& mesh) {
    auto towers = std::make_shared<TwoTowers>();
    SpmdOptions blocks;
    blocks.auto_wrap_policy = stage_type_policy({"block"});
    spmd_fully_shard(*towers->left, mesh);
    SpmdFullyShardedDataParallel<TwoTowers> sharded(towers, mesh, {}, blocks);
    Names units;
    for (const auto& unit : sharded.engine().units()) units.push_back(unit->name());
    EXPECT_THAT(units, ElementsAre("root", "root.replicated", "left", "right.blocks.0", "right.blocks.1"));
  });
}

TEST(SpmdNesting, StrategyTypesAndOffloadOfAUnitAreThoseOfTheInnerCall) {
  on_mesh({.dcn = 2, .data = 2}, [](const comm::Mesh& mesh) {
    ThreeBlocks model;
    SpmdOptions types, place, group;
    types.shard.mixed_precision.reduce_dtype = "bfloat16";
    types.shard.mixed_precision.keep_float32 = {"*bias"};
    place.shard.cpu_offload = place.shard.move_grads_to_cpu = true;
    group.shard.strategy = "full_shard";
    spmd_fully_shard(*model.blocks[0], mesh, {}, types);
    spmd_fully_shard(*model.blocks[1], mesh, {}, place);
    spmd_fully_shard(*model.blocks[2], mesh, {}, group);
    const auto engine = spmd_fully_shard(model, mesh);
    std::map<std::string, UnitOptions> options;
    for (const auto& unit : engine->units()) options[unit->name()] = unit->options();
    EXPECT_EQ(options.at("0").storage.reduce_dtype, at::kBFloat16);
    EXPECT_EQ(options.at("0.replicated.float32").storage.reduce_dtype, at::kFloat);
    EXPECT_EQ(options.at("1").storage.reduce_dtype, at::kFloat);
    EXPECT_TRUE(options.at("1").storage.cpu_offload && options.at("1").storage.move_grads_to_cpu);
    EXPECT_TRUE(options.at("1.replicated").storage.cpu_offload) << "its biases, which are whole";
    EXPECT_FALSE(options.at("0").storage.cpu_offload || options.at("2").storage.cpu_offload);
    std::map<std::string, int> shards;
    for (const auto& unit : engine->units()) shards[unit->name()] = unit->groups().shard->world_size();
    EXPECT_EQ(shards.at("0"), 2);
    EXPECT_EQ(shards.at("1"), 2);
    EXPECT_EQ(shards.at("2"), 4);
    EXPECT_THAT(spmd_debug(*engine),
                HasSubstr("2.in.weight  global [12, 6]  local [3, 6]  (dcn x data, whole)"));
    model.forward(at::ones({kBatch, kWidth})).sum().backward();
    for (const auto& unit : engine->units()) {
      EXPECT_EQ(unit->storage().shard_gradient().defined(), unit->storage().layout().numel() > 0)
          << unit->name();
    }
  });
}

TEST(SpmdNesting, AnOptionOfWholeEnginesIsRefusedUnlessBothHaveIt) {
  on_mesh({.dcn = 1, .data = 2}, [](const comm::Mesh& mesh) {
    Tower tower;
    SpmdOptions post;
    post.shard.backward_prefetch = "post";
    const auto inner = spmd_fully_shard(*tower.blocks->ptr<Block>(0), mesh, {}, post);
    const auto refused = refusal_of([&] { spmd_fully_shard(tower, mesh); });
    EXPECT_EQ(refused.kind, ErrorKind::kUsage);
    EXPECT_THAT(refused.text, HasSubstr("expected fsdp.backward_prefetch = post, with which blocks.0 was "
                                        "sharded and which all units of an engine share; found pre"));
    EXPECT_FALSE(inner->units().empty()) << "the inner engine has not ended";
    EXPECT_FALSE(spmd_fully_shard(tower, mesh, {}, post)->units().empty());
    EXPECT_TRUE(inner->units().empty());
  });
}

// ---- outputs and policies

TEST(SpmdNesting, ShardOutputMayReturnWhatTakesThePlaceOfTheOutput) {
  on_mesh({.dcn = 1, .data = 2}, [](const comm::Mesh& mesh) {
    Block block;
    spmd_fully_shard(block, mesh, [](const at::Tensor& output, const comm::Mesh& on) {
      return mark_sharding(output.t().contiguous(), on, {{}, {MeshAxis::kData}});
    });
    const at::Tensor output = block.forward(at::ones({kBatch, kWidth}));
    EXPECT_EQ(output.sizes(), (at::IntArrayRef{kWidth, kBatch / 2}));
    EXPECT_EQ(sharding_of(output)->global_shape, (std::vector<int64_t>{kWidth, kBatch}));
    EXPECT_EQ(to_string(sharding_of(output)->spec), "(whole, dcn x data)");
  });
}

TEST(SpmdNesting, APolicyThatWrapsNothingIsWarnedOf) {
  const auto lines_with = [](const std::string& type) {
    return testing::log_lines([&] {
      on_mesh({.dcn = 1, .data = 2}, [&](const comm::Mesh& mesh) {
        Tower tower;
        SpmdOptions options;
        options.auto_wrap_policy = stage_type_policy({type});
        const auto engine = spmd_fully_shard(tower, mesh, {}, options);
        EXPECT_EQ(engine->units().size(), type == "block" ? 4U : 2U);
      });
    });
  };
  EXPECT_THAT(lines_with("blok"),
              HasSubstr("auto_wrap_policy: expected a module that it wraps; found none among the "
                        "modules whose calls hooks can see (block)"));
  EXPECT_THAT(lines_with("block"), Not(HasSubstr("auto_wrap_policy")));
}

}  // namespace
}  // namespace fsdp::shard::nesting
