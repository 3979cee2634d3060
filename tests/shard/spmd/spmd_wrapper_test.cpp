// The wrapper of FSDP via SPMD inside of modules, around deferred parameters, and its debug print.

#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>

#include "base/tensor/rectangle_view.h"
#include "base/util/error.h"
#include "shard/nested_towers.h"
#include "shard/spmd/spmd_module.h"
#include "shard/state/state_dict.h"
#include "support/on_mesh.h"
#include "support/sharded_run.h"

namespace fsdp::shard::nesting {
namespace {

using ::testing::HasSubstr;
using testing::on_mesh;
using testing::refusal_of;
using Names = std::vector<std::string>;

struct Pair final : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x, const at::Tensor& y) { return at::tanh(a(x) + b(y)); }
  torch::nn::Linear a = register_module("a", torch::nn::Linear(kWidth, kWidth));
  torch::nn::Linear b = register_module("b", torch::nn::Linear(kWidth, kWidth));
};

/// Around any inner module with two inputs.
template <typename Inner>
struct Around final : torch::nn::Module {
  explicit Around(std::shared_ptr<Inner> given) : inner(register_module("inner", std::move(given))) {}
  at::Tensor forward(const at::Tensor& x) { return last(inner->forward(x, x * 2)); }
  std::shared_ptr<Inner> inner;
  torch::nn::Linear last = register_module("last", torch::nn::Linear(kWidth, 2));
};

TEST(SpmdWrapper, MayBeInsideAModuleThatIsWrapped) {
  on_mesh({.dcn = 1, .data = 2}, [](const comm::Mesh& mesh) {
    using Inner = SpmdFullyShardedDataParallel<Pair>;
    auto plain = with_values(std::make_shared<Around<Pair>>(std::make_shared<Pair>()));
    auto inner = std::make_shared<Inner>(with_values(std::make_shared<Pair>()), mesh);
    SpmdFullyShardedDataParallel<Around<Inner>> sharded(with_values(std::make_shared<Around<Inner>>(inner)),
                                                        mesh);
    Names names, expected_names;
    for (const auto& parameter : plain->named_parameters()) expected_names.push_back(parameter.key());
    for (const auto& parameter : sharded.named_parameters()) names.push_back(parameter.key());
    std::sort(names.begin(), names.end());
    std::sort(expected_names.begin(), expected_names.end());
    EXPECT_EQ(names, expected_names);
    EXPECT_TRUE(inner->engine().units().empty());

    const at::Tensor x = Batch(0).a;
    const at::Tensor expected = plain->forward(x), output = sharded.forward(x);
    EXPECT_TRUE(at::allclose(full_tensor(output, mesh), expected, 1e-6, 1e-6));
    expected.square().mean().backward();
    output.square().mean().backward();
    testing::sgd_on_shards(sharded.engine(), 1);
    for (const auto& [name, tensor] : full_state_dict(sharded.engine())) {
      const at::Tensor parameter = plain->named_parameters()[name];
      EXPECT_LE(largest_difference(tensor, parameter.detach() - parameter.grad()), 1e-6) << name;
    }
  });
}

TEST(SpmdWrapper, OutsideOfTheModuleIsRefused) {
  on_mesh({.dcn = 1, .data = 2}, [](const comm::Mesh& mesh) {
    auto around = std::make_shared<Around<Pair>>(std::make_shared<Pair>());
    SpmdFullyShardedDataParallel<Pair> inner(around->inner, mesh);
    const auto refused = refusal_of([&] { SpmdFullyShardedDataParallel<Around<Pair>>(around, mesh); });
    EXPECT_THAT(refused.text,
                HasSubstr("found inner.a.weight sharded with a wrapper that is not; register the "
                          "wrapper in place of the module that it wraps"));
  });
}

// ---- deferred parameters

/// The values of another module.
class DeferredValues final : public ParameterSource {
 public:
  explicit DeferredValues(torch::nn::Module& module) : values_(module.named_parameters()) {}
  void read(const NamedParameter& parameter, const std::vector<util::Rectangle>& parts,
            const at::Tensor& out) override {
    at::NoGradGuard no_grad;
    EXPECT_TRUE(parameter.tensor.is_meta());
    const at::Tensor whole = values_[parameter.name].detach();
    util::for_each_part(parts, out, [&](const util::Rectangle& part, const at::Tensor& values) {
      values.view({part.height(), part.length()}).copy_(util::rectangle_view(whole, part));
    });
  }

 private:
  torch::OrderedDict<std::string, at::Tensor> values_;
};

void defer(torch::nn::Module& module) {
  for (const auto& parameter : module.parameters()) {
    const at::Tensor on_meta = at::empty(parameter.sizes(), at::TensorOptions().device(at::kMeta));
    parameter.unsafeGetTensorImpl()->shallow_copy_from(on_meta.getIntrusivePtr());  // set_data() refuses it
  }
}

TEST(SpmdWrapper, TakesDeferredParameters) {
  on_mesh({.dcn = 1, .data = 2}, [](const comm::Mesh& mesh) {
    auto values = with_values(std::make_shared<Pair>());
    DeferredValues source(*values);
    SpmdOptions options;
    options.materialize = {&source, at::kCPU};
    auto deferred = std::make_shared<Pair>();
    defer(*deferred);
    SpmdFullyShardedDataParallel<Pair> sharded(deferred, mesh, {}, options);
    const auto state = full_state_dict(sharded.engine());
    EXPECT_EQ(state.size(), 4U);
    for (const auto& [name, tensor] : state) {
      EXPECT_TRUE(at::equal(tensor, values->named_parameters()[name].detach())) << name;
    }
    const at::Tensor x = Batch(0).a;
    EXPECT_TRUE(at::allclose(full_tensor(sharded.forward(x, x), mesh), values->forward(x, x), 1e-6, 1e-6));

    auto block_values = with_values(std::make_shared<Block>());
    DeferredValues block_source(*block_values);
    options.materialize.source = &block_source;
    Block block;
    defer(block);
    for (const auto& [name, tensor] : full_state_dict(*spmd_fully_shard(block, mesh, {}, options))) {
      EXPECT_TRUE(at::equal(tensor, block_values->named_parameters()[name].detach())) << name;
    }
  });
}

// ---- the debug print

TEST(SpmdDebug, ListsParametersAndActivations) {
  on_mesh({.dcn = 1, .data = 2}, [](const comm::Mesh& mesh) {
    SpmdFullyShardedDataParallel<Pair> sharded(with_values(std::make_shared<Pair>()), mesh);
    const at::Tensor x = at::ones({kBatch, kWidth}), output = sharded.forward(x, x);
    const std::string rank = concat("rank ", mesh.world()->rank());
    EXPECT_EQ(spmd_debug(sharded.engine(), {{"output", output}, {"x", x}}),
              rank + "  a.weight  global [6, 6]  local [3, 6]  (data, whole)  float32\n" +  //
                  rank + "  b.weight  global [6, 6]  local [3, 6]  (data, whole)  float32\n" + rank +
                  "  a.bias  global [6]  local [6]  (whole)  float32\n" +  //
                  rank + "  b.bias  global [6]  local [6]  (whole)  float32\n" + rank +
                  "  output  global [8, 6]  local [4, 6]  (dcn x data, whole)  float32\n" + rank +
                  "  x  global [8, 6]  local [8, 6]  (no mark)  float32\n");
  });
}

}  // namespace
}  // namespace fsdp::shard::nesting
