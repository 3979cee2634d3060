// Marks with the mesh axis model that no layer can be computed by.

#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include <functional>
#include <memory>

#include "model/nn/attention.h"
#include "shard/spmd/spmd_fully_shard.h"
#include "support/on_mesh.h"
#include "support/tiny_models.h"

namespace fsdp::shard::sharing_refused {
namespace {

using comm::MeshAxis;
using ::testing::HasSubstr;
using testing::on_mesh;
using testing::refusal_of;
using Linear = nn::HookedModule<torch::nn::LinearImpl>;
using Embedding = nn::HookedModule<torch::nn::EmbeddingImpl>;

constexpr MeshAxis kData = MeshAxis::kData, kModel = MeshAxis::kModel;

/// A module around `layer`, which is called if it is a Linear.
struct AroundImpl : torch::nn::Module {
  explicit AroundImpl(const std::shared_ptr<torch::nn::Module>& given)
      : layer(register_module("layer", given)) {}
  at::Tensor forward(const at::Tensor& x) { return dynamic_cast<Linear&>(*layer).forward(x); }
  at::Tensor parameter(const std::string& name) const { return layer->named_parameters()[name]; }
  std::shared_ptr<torch::nn::Module> layer;
};
using Around = nn::Hooked<AroundImpl>;

const comm::MeshOptions kMesh = {.dcn = 1, .data = 2, .model = 2};

struct Marked {
  std::shared_ptr<torch::nn::Module> layer;
  std::string parameter;
  PartitionSpec spec;
};

/// Of a module around the layer whose parameter is marked so.
std::string refused(const std::function<Marked()>& make, SpmdOptions options = {},
                    const comm::MeshOptions& shape = kMesh) {
  std::string text;
  on_mesh(shape, [&](const comm::Mesh& mesh) {
    const Marked marked = make();
    Around root(marked.layer);
    mark_sharding(root->parameter(marked.parameter), mesh, marked.spec);
    const auto refusal = refusal_of([&] { spmd_fully_shard(*root, mesh, {}, options); });
    EXPECT_EQ(refusal.kind, ErrorKind::kUsage);
    if (mesh.world()->rank() == 0) text = refusal.text;
  });
  return text;
}

TEST(ModelMarksRefusals, OfLayersWhoseCallsCannotBeHooked) {
  EXPECT_THAT(
      refused([] {
        return Marked{std::make_shared<torch::nn::LinearImpl>(8, 8), "weight", {{kModel}}};
      }),
      HasSubstr(
          "layer: expected a layer whose calls can be hooked; found a plain torch::nn::LinearImpl; declare "
          "it as fsdp::Hooked<torch::nn::LinearImpl>"));
}

TEST(ModelMarksRefusals, OfParametersThatAreNoLayers) {
  EXPECT_THAT(
      refused([] {
        return Marked{std::make_shared<torch::nn::LayerNormImpl>(torch::nn::LayerNormOptions({8})),
                      "weight",
                      {{kModel}}};
      }),
      HasSubstr("spmd_fully_shard(), layer.weight marked (model): expected the axis model on the weight of "
                "a linear layer, an embedding or a head, whose bias follows it; found a parameter of "
                "torch::nn::LayerNormImpl"));
}

TEST(ModelMarksRefusals, OfSizesThatDoNotDivide) {
  EXPECT_THAT(
      refused([] {
        return Marked{std::make_shared<Linear>(8, 15), "weight", {{kModel}}};
      }),
      HasSubstr("layer: expected features that the ranks divide; found 15 features and 2 ranks (15 = 7 x 2 "
                "+ 1)"));
  EXPECT_THAT(refused([] {
                return Marked{std::make_shared<Linear>(9, 8), "weight", {{}, {kModel}}};
              }),
              HasSubstr("found 9 features and 2 ranks (9 = 4 x 2 + 1)"));
  EXPECT_THAT(refused([] {
                return Marked{std::make_shared<Embedding>(1, 8), "weight", {{kModel}}};
              }),
              HasSubstr("a vocabulary of 1 in parts of 1 leaves some of 2 ranks without a row"));
}

TEST(ModelMarksRefusals, OfDimensionsThatCannotBeCut) {
  EXPECT_THAT(
      refused([] {
        return Marked{std::make_shared<Embedding>(8, 8), "weight", {{}, {kModel}}};
      }),
      HasSubstr("layer.weight marked (whole, model): expected the axis model on dimension 0, the tokens of "
                "the vocabulary; found it on dimension 1"));
  EXPECT_THAT(
      refused([] {
        return Marked{std::make_shared<Linear>(8, 8), "weight", {{kData, kModel}}};
      }),
      HasSubstr("layer.weight marked (data x model): expected the axis model alone on its dimension, while "
                "other axes cut another one; found 2 axes on dimension 0"));
  EXPECT_THAT(
      refused([] {
        return Marked{std::make_shared<nn::Attention>(testing::tiny_options()), "q_proj.weight", {{kModel}}};
      }),
      HasSubstr("layer.q_proj.weight marked (model): expected a layer of features; found one of attention "
                "heads, which a mark does not know; use parallelize_decoder()"));
}

TEST(ModelMarksRefusals, OfABiasThatDoesNotFollowItsWeight) {
  on_mesh(kMesh, [](const comm::Mesh& mesh) {
    for (const bool cuts_outputs : {true, false}) {
      Around root(std::make_shared<Linear>(8, 8));
      mark_sharding(root->parameter("weight"), mesh,
                    cuts_outputs ? PartitionSpec{{kModel}, {kData}} : PartitionSpec{{kData}, {kModel}});
      mark_sharding(root->parameter("bias"), mesh,
                    cuts_outputs ? PartitionSpec{{kData}} : PartitionSpec{{kModel}});
      EXPECT_THAT(
          refusal_of([&] { spmd_fully_shard(*root, mesh); }).text,
          HasSubstr(cuts_outputs
                        ? "layer.bias marked (data): expected a bias that the axis model cuts like its "
                          "weight's output features; found the opposite"
                        : "layer.bias marked (model): expected a bias that is whole on each rank of model"));
    }
  });
}

TEST(ModelMarksRefusals, OfPartsThatWereMadeBefore) {
  SpmdOptions options;
  options.shard.parts.resize(1);
  EXPECT_THAT(refused(
                  [] {
                    return Marked{std::make_shared<Linear>(8, 8), "weight", {{kModel}}};
                  },
                  options),
              HasSubstr("expected ShardOptions::parts or parameters marked with the axis model; found both"));
}

TEST(ModelMarksRefusals, OfPartsOfSequences) {
  EXPECT_THAT(
      refused(
          [] {
            return Marked{std::make_shared<Linear>(8, 8), "weight", {}};
          },
          {}, {.dcn = 1, .data = 1, .context = 2}),
      HasSubstr("expected a mesh whose axis context has 1 rank; found dcn 1 x data 1 x context 2 x model 1"));
}

TEST(ModelMarksRefusals, OfModulesShardedOneByOne) {
  on_mesh(kMesh, [](const comm::Mesh& mesh) {
    Around inner(std::make_shared<Linear>(8, 8));
    mark_sharding(inner->parameter("weight"), mesh, {{kModel}, {kData}});
    const auto engine = spmd_fully_shard(*inner, mesh);
    Around outer(std::static_pointer_cast<torch::nn::Module>(inner.ptr()));
    EXPECT_THAT(
        refusal_of([&] { spmd_fully_shard(*outer, mesh); }).text,
        HasSubstr("expected one call for a module with parameters marked with the axis model; found layer "
                  "sharded before; make it a unit with auto_wrap_policy or wrap() instead"));
    EXPECT_EQ(inner->forward(at::ones({4, 8})).size(0), 2) << "its engine goes on";
  });
}

TEST(ModelMarksRefusals, OfInputsThatALayerCannotTake) {
  on_mesh(kMesh, [](const comm::Mesh& mesh) {
    const auto refusal = [&](const PartitionSpec& weight, const PartitionSpec& input) {
      Around root(std::make_shared<Linear>(8, 8));
      mark_sharding(root->parameter("weight"), mesh, weight);
      const auto engine = spmd_fully_shard(*root, mesh);
      const at::Tensor whole = at::ones({4, 8});
      return refusal_of([&] { root->forward(mark_sharding(whole, mesh, input)); }).text;
    };
    EXPECT_THAT(
        refusal({{}, {kModel}}, {{}, {kData}}),
        HasSubstr("layer: expected an input whose features are cut over model alone; found one of shape "
                  "[4, 8] sharded as (whole, data), with 4 = 8 / 2 of dimension 1 on a rank"));
    EXPECT_THAT(
        refusal({{kModel}}, {{}, {kModel}}),
        HasSubstr("layer: expected an input with all features; found one of shape [4, 8] sharded as (whole, "
                  "model), with 4 = 8 / 2 of dimension 1"));
    EXPECT_THAT(
        refusal({{kModel}}, {{kModel}}),
        HasSubstr("layer: expected an input that the ranks of model have alike; found one of shape [4, 8] "
                  "sharded as (model), with 2 = 4 / 2 of dimension 0"));
  });
}

}  // namespace
}  // namespace fsdp::shard::sharing_refused
