// How marks follow through operations: whatever a rule says must describe the operation on global tensors.

#include "shard/spmd/mark_rules.h"

#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include <functional>
#include <vector>

#include "shard/spmd/marks.h"
#include "support/on_mesh.h"

namespace fsdp::shard::marking {
namespace {

using comm::MeshAxis;
using ::testing::HasSubstr;
using testing::on_mesh;
using testing::refusal_of;

constexpr MeshAxis kDcn = MeshAxis::kDcn, kData = MeshAxis::kData;
using Tensors = std::vector<at::Tensor>;

at::Tensor numbers(at::IntArrayRef shape) {
  int64_t count = 1;
  for (int64_t size : shape) count *= size;
  return at::arange(count, at::kFloat).mul(0.37).sin().view(shape);
}

struct Case {
  const char* name;
  std::vector<std::vector<int64_t>> shapes;  ///< of the global operands
  std::vector<PartitionSpec> specs;          ///< an operand beyond these has no mark
  std::function<at::Tensor(const Tensors&)> run;
};

const PartitionSpec kBatch = {{kDcn, kData}};

const std::vector<Case>& determined() {
  static const std::vector<Case> kCases = {
      {"gelu", {{8, 3}}, {kBatch}, [](const Tensors& x) { return at::gelu(x[0]); }},
      {"add a bias", {{8, 3}, {3}}, {kBatch}, [](const Tensors& x) { return x[0] + x[1]; }},
      {"add alike", {{8, 3}, {8, 3}}, {kBatch, kBatch}, [](const Tensors& x) { return x[0] - x[1] * 2; }},
      {"add in place",
       {{8, 3}, {8, 1}},
       {kBatch, kBatch},
       [](const Tensors& x) { return x[0].clone().add_(x[1]); }},
      {"outer sum",
       {{4, 1}, {1, 6}},
       {{{kDcn}}, {{}, {kData}}},
       [](const Tensors& x) { return x[0] + x[1]; }},
      {"to double", {{8, 3}}, {kBatch}, [](const Tensors& x) { return x[0].to(at::kDouble).to(at::kFloat); }},
      {"transpose", {{8, 3, 2}}, {kBatch}, [](const Tensors& x) { return x[0].transpose(0, -1); }},
      {"t", {{8, 3}}, {kBatch}, [](const Tensors& x) { return x[0].t(); }},
      {"permute",
       {{8, 3, 2}},
       {kBatch},
       [](const Tensors& x) {
         return x[0].permute({2, 0, 1}).contiguous();
       }},
      {"unsqueeze", {{8, 3}}, {kBatch}, [](const Tensors& x) { return x[0].unsqueeze(0).unsqueeze(-1); }},
      {"squeeze", {{8, 1, 3}}, {kBatch}, [](const Tensors& x) { return x[0].squeeze(1); }},
      {"squeeze all", {{8, 1, 3}}, {kBatch}, [](const Tensors& x) { return x[0].squeeze(); }},
      {"expand",
       {{8, 1}},
       {kBatch},
       [](const Tensors& x) {
         return x[0].expand({-1, 5}).clone();
       }},
      {"join the batch",
       {{8, 3, 2}},
       {kBatch},
       [](const Tensors& x) {
         return x[0].reshape({-1, 2});
       }},
      {"join the rest", {{8, 3, 2}}, {kBatch}, [](const Tensors& x) { return x[0].flatten(1); }},
      {"split the batch",
       {{16, 3}},
       {kBatch},
       [](const Tensors& x) {
         return x[0].view({-1, 2, 3});
       }},
      {"split heads",
       {{8, 2, 6}},
       {kBatch},
       [](const Tensors& x) {
         return x[0].view({-1, 2, 3, 2}).transpose(1, 2);
       }},
      {"view of transposed",
       {{3, 8, 2}},
       {{{}, {kDcn, kData}}},
       [](const Tensors& x) {
         return x[0].view({3, -1, 1, 2});
       }},
      {"join with a single one",
       {{1, 8}},
       {{{}, {kData}}},
       [](const Tensors& x) { return x[0].reshape({-1}); }},
      {"slice", {{8, 6}}, {kBatch}, [](const Tensors& x) { return x[0].slice(1, 1, 4); }},
      {"select", {{3, 8}}, {{{}, {kData}}}, [](const Tensors& x) { return x[0].select(0, 1); }},
      {"chunk", {{8, 6}}, {kBatch}, [](const Tensors& x) { return x[0].chunk(3, 1)[1]; }},
      {"mm", {{8, 6}, {6, 5}}, {kBatch}, [](const Tensors& x) { return at::mm(x[0], x[1]); }},
      {"mm of rows and columns",
       {{4, 3}, {3, 8}},
       {{{kDcn}}, {{}, {kData}}},
       [](const Tensors& x) { return at::mm(x[0], x[1]); }},
      {"addmm",
       {{8, 6}, {6, 5}, {5}},
       {kBatch},
       [](const Tensors& x) { return at::addmm(x[2], x[0], x[1]); }},
      {"bmm", {{8, 3, 2}, {8, 2, 4}}, {kBatch, kBatch}, [](const Tensors& x) { return at::bmm(x[0], x[1]); }},
      {"matmul", {{8, 3, 6}, {6, 5}}, {kBatch}, [](const Tensors& x) { return at::matmul(x[0], x[1]); }},
      {"linear",
       {{8, 3, 6}, {5, 6}, {5}},
       {kBatch},
       [](const Tensors& x) { return at::linear(x[0], x[1], x[2]); }},
      {"softmax", {{8, 6}}, {kBatch}, [](const Tensors& x) { return at::softmax(x[0], -1); }},
      {"log_softmax", {{8, 6}}, {kBatch}, [](const Tensors& x) { return at::log_softmax(x[0], -1); }},
      {"layer_norm", {{8, 6}}, {kBatch}, [](const Tensors& x) { return at::layer_norm(x[0], {6}); }}};
  return kCases;
}

TEST(MarkRules, AResultIsThePartOfTheGlobalResult) {
  for (const auto& shape : {comm::MeshOptions{2, 2}, {1, 2}}) {
    on_mesh(shape, [](const comm::Mesh& mesh) {
      for (const Case& each : determined()) {
        for (bool records : {false, true}) {
          at::AutoGradMode mode(records);
          Tensors global, local;
          for (size_t i = 0; i < each.shapes.size(); ++i) {
            at::Tensor whole = numbers(each.shapes[i]);
            if (records) whole = whole.requires_grad_().clone();
            global.push_back(whole);
            local.push_back(i < each.specs.size() ? mark_sharding(whole, mesh, each.specs[i]) : whole);
          }
          const at::Tensor expected = each.run(global), part = each.run(local);
          const auto sharding = sharding_of(part);
          ASSERT_TRUE(sharding.has_value()) << each.name;
          EXPECT_EQ(at::IntArrayRef(sharding->global_shape), expected.sizes()) << each.name;
          EXPECT_TRUE(at::allclose(full_tensor(part, mesh), expected, 1e-6, 1e-6)) << each.name;
          EXPECT_FALSE(sharding_of(expected).has_value()) << each.name;
        }
      }
    });
  }
}

const std::vector<Case>& undetermined() {
  static const std::vector<Case> kCases = {
      {"aten::sum", {{8, 3}}, {kBatch}, [](const Tensors& x) { return x[0].sum(0); }},
      {"aten::mm",
       {{3, 8}, {8, 3}},
       {{{}, {kData}}, {{kData}}},
       [](const Tensors& x) { return at::mm(x[0], x[1]); }},
      {"aten::view", {{8, 4}}, {{{}, {kData}}}, [](const Tensors& x) { return x[0].view({-1}); }},
      {"aten::view",
       {{8}},
       {{{kData}}},
       [](const Tensors& x) {
         return x[0].view({1, -1});
       }},
      {"aten::slice", {{8, 3}}, {kBatch}, [](const Tensors& x) { return x[0].slice(0, 0, 1); }},
      {"aten::_softmax", {{8, 6}}, {kBatch}, [](const Tensors& x) { return at::softmax(x[0], 0); }},
      {"aten::cumsum", {{8, 6}}, {kBatch}, [](const Tensors& x) { return x[0].cumsum(1) * 2; }}};
  return kCases;
}

TEST(MarkRules, AnythingElseAsksForAMark) {
  on_mesh({.dcn = 1, .data = 2}, [](const comm::Mesh& mesh) {
    for (const Case& each : undetermined()) {
      Tensors local;
      for (size_t i = 0; i < each.shapes.size(); ++i) {
        local.push_back(mark_sharding(numbers(each.shapes[i]), mesh, each.specs[i]));
      }
      const at::Tensor result = each.run(local);
      EXPECT_FALSE(sharding_of(result).has_value()) << each.name;
      for (const auto& use : {std::function<void()>([&] { mark_sharding(result, mesh, {}); }),
                              std::function<void()>([&] { full_tensor(result, mesh); })}) {
        const auto refused = refusal_of(use);
        EXPECT_EQ(refused.kind, ErrorKind::kUsage);
        EXPECT_THAT(refused.text,
                    HasSubstr(std::string("found the result of ") + each.name + " of a tensor sharded as ("));
        EXPECT_THAT(refused.text, HasSubstr("state it with mark_local_shard()"));
      }
      EXPECT_TRUE(sharding_of(mark_local_shard(result, mesh, {})).has_value());
    }
  });
}

TEST(MarkRules, OperandsThatContradictEachOtherDetermineNothing) {
  on_mesh({.dcn = 1, .data = 2}, [](const comm::Mesh& mesh) {
    const at::Tensor rows = mark_sharding(numbers({8, 4}), mesh, {{kData}});
    const at::Tensor columns = mark_sharding(numbers({4, 8}), mesh, {{}, {kData}});
    EXPECT_FALSE(sharding_of(rows + columns).has_value());
    EXPECT_FALSE(sharding_of(at::mm(rows, columns)).has_value()) << "one axis cannot cut both dimensions";
  });
}

TEST(MarkRules, WhatIsAPartAlreadyIsNotCutAgain) {
  on_mesh({.dcn = 1, .data = 2}, [](const comm::Mesh& mesh) {
    const at::Tensor part = mark_sharding(numbers({8, 3}), mesh, batch_spec());
    const at::Tensor result = at::relu(part) * 2;
    EXPECT_TRUE(mark_sharding(result, mesh, batch_spec()).is_same(result));
    EXPECT_TRUE(mark_sharding(result, mesh, {{kData}, {}}).is_same(result)) << "cuts alike: dcn has one rank";
    EXPECT_THAT(refusal_of([&] {
                  mark_sharding(result, mesh, {{}, {kData}});
                }).text,
                HasSubstr("found one that is sharded as (dcn x data, whole)"));
    const at::Tensor whole = mark_local_shard(numbers({8, 3}), mesh, {});
    EXPECT_EQ(mark_sharding(whole * 2, mesh, batch_spec()).size(0), 4) << "a mark may say that it is whole";
  });
}

TEST(MarkRules, ParametersAreWholeWhileTheyAreUsed) {
  on_mesh({.dcn = 1, .data = 2}, [](const comm::Mesh& mesh) {
    torch::nn::Linear linear(3, 4);
    mark_sharding(linear->weight, mesh, {{kData}});
    const at::Tensor result = linear(mark_sharding(numbers({8, 3}), mesh, batch_spec()));
    EXPECT_EQ(sharding_of(result)->global_shape, (std::vector<int64_t>{8, 4}));
    EXPECT_FALSE(sharding_of(linear->weight.t()).has_value());
  });
}

TEST(MarkRules, GradientsHaveNoMarks) {
  on_mesh({.dcn = 1, .data = 2}, [](const comm::Mesh& mesh) {
    const at::Tensor leaf = numbers({8, 3}).requires_grad_();
    const at::Tensor part = mark_sharding(leaf * 1, mesh, batch_spec());
    bool is_seen = false;
    part.register_hook([&](const at::Tensor& gradient) {
      is_seen = true;
      EXPECT_FALSE(mark_of(gradient).has_value());
    });
    (part * part).sum().backward();
    EXPECT_TRUE(is_seen);
  });
}

TEST(MarkRules, InsideAShardedModuleAnActivationWithoutAMarkIsNotCut) {
  on_mesh({.dcn = 1, .data = 2}, [](const comm::Mesh& mesh) {
    const InsideShardedModule inside;
    const at::Tensor tensor = numbers({8, 3});
    EXPECT_THAT(
        refusal_of([&] { mark_sharding(tensor, mesh, batch_spec()); }).text,
        HasSubstr("expected an activation with a known mark inside a sharded module, where all of them are "
                  "parts of global ones; found one of shape [8, 3] without a mark; state it first: "
                  "mark_local_shard(tensor, mesh, (dcn x data)) if it is this rank's part"));
    EXPECT_EQ(mark_sharding(mark_local_shard(tensor, mesh, {}), mesh, batch_spec()).size(0), 4);
  });
}

TEST(Marks, OfTensorsThatAreGoneAreForgotten) {
  const at::Tensor kept = at::ones({2});
  mark_activation(kept, UnstatedMark{});
  const size_t before = kept_marks();
  std::vector<at::Tensor> crowd;  // so that the ones that follow have other addresses
  for (int round = 0; round < 20; ++round) {
    crowd.clear();
    for (int i = 0; i < 500; ++i) mark_activation(crowd.emplace_back(at::ones({1})), UnstatedMark{});
    EXPECT_GE(kept_marks(), before);
  }
  EXPECT_LE(kept_marks(), 4 * (before + 500) + 500) << "of " << 20 * 500 << " that were marked";
  EXPECT_TRUE(mark_of(kept).has_value());
}

}  // namespace
}  // namespace fsdp::shard::marking
