// Buffers have the type of the parameters of their module, unless the options name one.

#include <gtest/gtest.h>
#include <torch/nn/modules.h>

#include "comm/threads/thread_communicator.h"
#include "model/nn/buffers.h"
#include "model/nn/hooked.h"
#include "support/forwarding_communicator.h"
#include "support/layout_under_test.h"

namespace fsdp::shard::buffers {
namespace {

/// A table that follows from options.
struct TableImpl : torch::nn::Module, nn::ComputedBuffers {
  at::Tensor table = register_buffer("table", at::ones({4}));
};

struct ImageNetImpl : torch::nn::Module {
  /// x: [B, 3, 8, 8] -> [B, 2]
  at::Tensor forward(const at::Tensor& x) {
    seen = norm(conv(x));
    return head((seen * scale).mean({2, 3}));
  }
  torch::nn::Conv2d conv = register_module("conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 8, 3)));
  nn::Hooked<torch::nn::BatchNorm2dImpl> norm =
      register_module("norm", nn::Hooked<torch::nn::BatchNorm2dImpl>(8));
  torch::nn::Linear head = register_module("head", torch::nn::Linear(8, 2));
  std::shared_ptr<TableImpl> table = register_module("table", std::make_shared<TableImpl>());
  at::Tensor scale = register_buffer("scale", at::ones({}));
  at::Tensor seen;
};
using ImageNet = nn::Hooked<ImageNetImpl>;

void on_two_ranks(const ShardOptions& options, const std::function<void(ImageNet&)>& check) {
  comm::run_ranks_as_threads(2, [&](comm::Communicator& communicator) {
    ImageNet net;
    auto engine = testing::shard_under_test(*net, options, testing::borrowed(communicator));
    net(at::ones({2, 3, 8, 8}).mul(0.5)).to(at::kFloat).square().mean().backward();
    check(net);
  });
}

TEST(BufferTypes, BatchNormTrainsInBfloat16) {
  on_two_ranks({.mixed_precision = {.param_dtype = "bfloat16"}}, [](ImageNet& net) {
    EXPECT_EQ(net->norm->running_mean.scalar_type(), at::kBFloat16);
    EXPECT_EQ(net->norm->running_var.scalar_type(), at::kBFloat16);
    EXPECT_EQ(net->norm->num_batches_tracked.scalar_type(), at::kLong) << "an integer";
    EXPECT_EQ(net->norm->num_batches_tracked.item<int64_t>(), 1);
    EXPECT_EQ(net->seen.scalar_type(), at::kBFloat16);
    EXPECT_EQ(net->scale.scalar_type(), at::kBFloat16);
    EXPECT_EQ(net->table->table.scalar_type(), at::kFloat) << "computed, not trained";
  });
}

TEST(BufferTypes, FollowParametersThatAreKeptInFloat32) {
  on_two_ranks({.mixed_precision = {.param_dtype = "bfloat16", .keep_float32 = {"norm.*"}}},
               [](ImageNet& net) {
                 EXPECT_EQ(net->norm->running_mean.scalar_type(), at::kFloat);
                 EXPECT_EQ(net->scale.scalar_type(), at::kBFloat16);
               });
}

TEST(BufferTypes, FollowTheUnitOfTheirModule) {
  comm::run_ranks_as_threads(2, [&](comm::Communicator& communicator) {
    ImageNet net;
    ShardOptions options;
    options.mixed_precision.param_dtype = "bfloat16";
    options.wrapped = {{&net->norm->hooked(), {.param_dtype = "float32"}}};
    auto engine = testing::shard_under_test(*net, options, testing::borrowed(communicator));
    EXPECT_EQ(net->norm->running_mean.scalar_type(), at::kFloat);
    EXPECT_EQ(net->scale.scalar_type(), at::kBFloat16);
  });
}

TEST(BufferTypes, HaveTheTypeThatTheOptionsName) {
  comm::run_ranks_as_threads(2, [&](comm::Communicator& communicator) {
    ImageNet net;
    ShardOptions options;
    options.mixed_precision = {.param_dtype = "bfloat16", .buffer_dtype = "float32"};
    auto engine = testing::shard_under_test(*net, options, testing::borrowed(communicator));
    EXPECT_EQ(net->norm->running_mean.scalar_type(), at::kFloat);
    options.mixed_precision.buffer_dtype = "bfloat16";
    ImageNet other;
    engine = testing::shard_under_test(*other, options, testing::borrowed(communicator));
    EXPECT_EQ(other->table->table.scalar_type(), at::kBFloat16);
  });
}

}  // namespace
}  // namespace fsdp::shard::buffers
