// The device without hardware (support/fake_device.h): it computes as the CPU does and detects races.

#include "support/fake_device.h"

#include <ATen/Functions.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <thread>
#include <vector>

#include "base/tensor/storage.h"
#include "base/tensor/stream.h"
#include "model/nn/decoder.h"
#include "model/nn/initialize.h"
#include "model/nn/recompute.h"
#include "state/optim/matrix_blocks.h"
#include "support/fake_collectives.h"
#include "support/tiny_models.h"

namespace fsdp::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

at::Tensor sample(std::vector<int64_t> shape, double phase) {
  return (at::arange(c10::multiply_integers(shape), at::kFloat) * 0.7 + phase).sin().view(shape);
}

class FakeDeviceTest : public ::testing::Test {
 protected:
  void SetUp() override { fake.begin(); }
  void TearDown() override { fake.set_behind(false); }

  at::Tensor on_device(const at::Tensor& tensor) const { return tensor.to(fake.device()); }

  /// Expects the same result of `function` on the device and on the CPU.
  void expect_as_on_cpu(const std::function<at::Tensor(std::vector<at::Tensor>)>& function,
                        const std::vector<at::Tensor>& inputs) {
    std::vector<at::Tensor> moved;
    for (const at::Tensor& input : inputs) moved.push_back(on_device(input));
    const at::Tensor expected = function(inputs), result = function(moved);
    ASSERT_EQ(result.device(), fake.device());
    EXPECT_EQ(result.sizes(), expected.sizes());
    EXPECT_TRUE(at::allclose(result.cpu(), expected, 1e-5, 1e-6)) << result.cpu() << expected;
    EXPECT_EQ(fake.report(), "");
  }

  FakeDevice& fake = FakeDevice::get();
};

TEST_F(FakeDeviceTest, ComputesWhatTheCpuComputes) {
  const at::Tensor a = sample({4, 6}, 0.1), b = sample({4, 6}, 0.9),
                   ids = at::tensor({3, 0, 3, 1}, at::kLong);
  using Tensors = std::vector<at::Tensor>;
  expect_as_on_cpu([](const Tensors& t) { return (t[0] + 2 * t[1]).div(t[1].exp()).sub(1); }, {a, b});
  expect_as_on_cpu([](const Tensors& t) { return at::matmul(t[0], t[1].t()); }, {a, b});
  expect_as_on_cpu([](const Tensors& t) { return t[0].view({2, 12}).transpose(0, 1).reshape({3, 8}); }, {a});
  expect_as_on_cpu([](const Tensors& t) { return at::cat({t[0], t[1].narrow(0, 1, 2)}); }, {a, b});
  expect_as_on_cpu([](const Tensors& t) { return at::embedding(t[0], t[1]); }, {a, ids});
  expect_as_on_cpu([](const Tensors& t) { return t[0].index({t[1]}); }, {a, ids});
  expect_as_on_cpu([](const Tensors& t) { return t[0].index({t[0] > 0}); }, {a});
  expect_as_on_cpu([](const Tensors& t) { return t[0].index_select(0, t[1]).softmax(-1); }, {a, ids});
  expect_as_on_cpu(
      [](const Tensors& t) {
        return t[0].gather(0, t[1].view({1, 4}).narrow(1, 0, 3));
      },
      {a, ids});
  expect_as_on_cpu([](const Tensors& t) { return at::layer_norm(t[0], {6}); }, {a});
  expect_as_on_cpu([](const Tensors& t) { return at::cross_entropy_loss(t[0], t[1]); }, {a, ids});
  expect_as_on_cpu([](const Tensors& t) { return std::get<0>(t[0].sort(-1)).cumsum(0); }, {a});
  expect_as_on_cpu(
      [](const Tensors& t) { return at::stack(t[0].unbind(1)).to(at::kBFloat16).to(at::kFloat); }, {a});
}

TEST_F(FakeDeviceTest, WritesThroughViewsAndOutputs) {
  at::Tensor base = at::zeros({3, 4}, fake.options());
  base.narrow(1, 1, 2).add_(2);
  base.select(0, 2).copy_(at::arange(4, at::kFloat));
  at::mul_out(base, base, base);
  EXPECT_TRUE(base.cpu().equal(at::tensor({0, 4, 4, 0, 0, 4, 4, 0, 0, 1, 4, 9}, at::kFloat).view({3, 4})));
  at::Tensor out = at::empty({0}, fake.options());
  at::cat_out(out, {base, base});
  EXPECT_EQ(out.sizes(), (std::vector<int64_t>{6, 4}));
  EXPECT_EQ(out.sum().item<float>(), 60);
  at::Tensor masked = base.masked_fill(base > 3, -1);
  masked.index_put_({at::tensor({0}, fake.options(at::kLong))}, at::tensor(7.0f));
  EXPECT_EQ(masked.select(0, 0).sum().item<float>(), 28);
  EXPECT_EQ(fake.report(), "");
}

TEST_F(FakeDeviceTest, DifferentiatesOnAThreadOfTheDevice) {
  const at::Tensor x = sample({5, 4}, 0.2), w = sample({3, 4}, 0.3);
  auto gradients = [&](const at::Device& device) {
    at::Tensor input = x.to(device).clone().requires_grad_(), weight = w.to(device).clone().requires_grad_();
    const auto caller = std::this_thread::get_id();
    bool beside = false;
    weight.register_hook([&](const at::Tensor&) { beside = std::this_thread::get_id() != caller; });
    at::layer_norm(at::linear(input, weight), {3})
        .square()
        .mul(at::arange(3, weight.options()))
        .sum()
        .backward();
    EXPECT_EQ(beside, !device.is_cpu());
    return std::pair(input.grad().cpu(), weight.grad().cpu());
  };
  const auto expected = gradients(at::kCPU), result = gradients(fake.device());
  EXPECT_TRUE(at::allclose(result.first, expected.first, 1e-4, 1e-5));
  EXPECT_TRUE(at::allclose(result.second, expected.second, 1e-4, 1e-5));
  EXPECT_EQ(fake.report(), "");
}

TEST_F(FakeDeviceTest, FindsUseOnTwoStreamsInNoOrder) {
  const c10::Stream side = fake.new_stream();
  at::Tensor x = at::ones({8}, fake.options());
  at::Tensor y = [&] {
    c10::StreamGuard on(side);
    return x + 1;
  }();
  const std::string name = FakeDevice::name(side).text();
  EXPECT_THAT(fake.races(), ElementsAre(AllOf(HasSubstr("aten::fill_.Scalar on stream 0 writes"),
                                              HasSubstr("aten::add.out on " + name + " reads"),
                                              HasSubstr("nothing orders their streams"))));
  fake.begin();
  x.add_(1);
  c10::Event added(x.device().type());
  added.record(fake.current_stream());
  added.block(side);
  {
    c10::StreamGuard on(side);
    y.copy_(x);
  }
  EXPECT_EQ(fake.report(), "");
  x.zero_();  // while the other stream reads
  EXPECT_THAT(fake.races(), ElementsAre(HasSubstr("aten::copy_ on " + name + " reads")));
}

TEST_F(FakeDeviceTest, TellsPiecesOfOneMemoryApart) {
  const c10::Stream side = fake.new_stream();
  at::Tensor arena = at::zeros({4, 8}, fake.options());
  fake.begin();
  arena.narrow(1, 0, 4).fill_(1);
  {
    c10::StreamGuard on(side);
    arena.narrow(1, 4, 4).fill_(2);
  }
  EXPECT_EQ(fake.report(), "");
  arena.narrow(1, 3, 2).fill_(3);
  EXPECT_EQ(fake.races().size(), 1u);
}

TEST_F(FakeDeviceTest, OrdersByTheHostsWaits) {
  const c10::Stream side = fake.new_stream();
  at::Tensor x = at::ones({8}, fake.options());
  EXPECT_EQ(x.sum().item<float>(), 8);
  {
    c10::StreamGuard on(side);
    x.add_(1);
  }
  side.synchronize();
  x.add_(1);
  EXPECT_EQ(fake.report(), "");
  fake.note_host_access(x.data_ptr(), 4, FakeDevice::Access::kRead, "a look from the host");
  EXPECT_THAT(fake.races(), ElementsAre(HasSubstr("a look from the host on the host reads")));
}

TEST_F(FakeDeviceTest, FindsMemoryThatIsUsedAgainTooSoon) {
  const c10::Stream side = fake.new_stream();
  at::Tensor sum = at::zeros({100}, fake.options());
  auto use_beside = [&](const std::function<void(const at::Tensor&)>& then) {
    at::Tensor x = at::ones({100}, fake.options());
    c10::Event ready(x.device().type()), done(x.device().type());
    ready.record(fake.current_stream());
    ready.block(side);
    {
      c10::StreamGuard on(side);
      sum.add_(x);
    }
    const void* memory = x.data_ptr();
    then(x);
    x.reset();
    at::Tensor next = at::ones({100}, fake.options());
    return next.data_ptr() == memory;
  };
  EXPECT_TRUE(use_beside([](const at::Tensor&) {}));
  EXPECT_THAT(fake.races(), ElementsAre(AllOf(HasSubstr("aten::add.out on " + FakeDevice::name(side).text()),
                                              HasSubstr("aten::fill_.Scalar on stream 0 writes"))));
  fake.begin();
  EXPECT_TRUE(use_beside([&](const at::Tensor&) {
    c10::Event done(fake.device().type());
    done.record(side);
    done.block(fake.current_stream());
  }));
  EXPECT_FALSE(use_beside([&](const at::Tensor& x) { x.record_stream(side); }));
  EXPECT_EQ(fake.report(), "");
}

TEST_F(FakeDeviceTest, PoisonsMemoryThatIsNewOrFreed) {
  EXPECT_TRUE(at::empty({4}, fake.options()).isnan().all().item<bool>());
  at::Tensor x = at::ones({4096}, fake.options());
  at::Tensor stale = at::empty({0}, fake.options());
  stale.set_(
      c10::Storage(c10::Storage::use_byte_size_t(), x.nbytes(), c10::DataPtr(x.data_ptr(), x.device())), 0,
      {4096}, {1});
  EXPECT_EQ(stale.sum().item<float>(), 4096);
  x.reset();
  EXPECT_EQ(fake.report(), "");
  EXPECT_TRUE(stale.isnan().all().item<bool>());
  EXPECT_THAT(fake.races(), ElementsAre(HasSubstr("touches memory that was freed")));
  EXPECT_EQ(fake.live_bytes(1), 0u);
  EXPECT_EQ(at::empty({1}, fake.options(at::kFloat, 1)).device().index(), 1);
}

TEST_F(FakeDeviceTest, FreesAndRestoresStorages) {
  at::Tensor flat = at::ones({8}, fake.options()), view = flat.narrow(0, 2, 4);
  const size_t held = fake.live_bytes();
  util::free_storage(flat);
  EXPECT_LT(fake.live_bytes(), held);
  EXPECT_ANY_THROW(view.add_(1));
  util::restore_storage(flat, 32);
  flat.fill_(3);
  EXPECT_EQ(view.sum().item<float>(), 12);
  EXPECT_EQ(fake.report(), "");
}

TEST_F(FakeDeviceTest, CopiesToPinnedMemoryAreDoneWhenTheHostHasWaited) {
  const auto pinned = at::TensorOptions().dtype(at::kFloat).pinned_memory(true);
  at::Tensor x = at::full({4}, 3.0f, fake.options()), host = at::zeros({4}, pinned);
  ASSERT_TRUE(host.is_pinned());
  host.copy_(x, /*non_blocking=*/true);
  c10::Event copied(x.device().type());
  copied.record(fake.current_stream());
  EXPECT_TRUE(host.isnan().all().item<bool>());
  fake.set_behind(true);
  EXPECT_FALSE(copied.query());
  copied.synchronize();
  EXPECT_TRUE(copied.query());
  EXPECT_EQ(host.sum().item<float>(), 12);

  x.copy_(host, /*non_blocking=*/true);
  EXPECT_EQ(fake.report(), "");
  host.zero_();
  EXPECT_THAT(fake.races(), ElementsAre(HasSubstr("the host changed 16 bytes while they were copied from")));
}

TEST_F(FakeDeviceTest, CarriesAStreamOfTasks) {
  util::Stream stream({.device = fake.device()});
  at::Tensor x = at::ones({4}, fake.options()), y = at::zeros({4}, fake.options());
  util::Event done = stream.run([&] { y.add_(x); });
  done.wait();
  EXPECT_EQ((x + y).sum().item<float>(), 8);
  EXPECT_EQ(fake.report(), "");
  stream.run([&] { y.add_(x); });
  y.mul(2);
  EXPECT_EQ(fake.races().size(), 1u) << fake.report();
}

TEST_F(FakeDeviceTest, ATaskApartWaitsForNothingButWhatItWaitsForItself) {
  util::Stream first({.device = fake.device()}), second({.device = fake.device()});
  at::Tensor x = at::ones({4}, fake.options());
  fake.begin();
  util::Event done = first.run([&] { x.add_(1); });
  second.run_apart([&] {
    done.wait();
    x.add_(1);
  });
  EXPECT_EQ(fake.report(), "");
  at::Tensor y = x + 1;  // the caller has waited for neither
  EXPECT_EQ(fake.races().size(), 1u) << fake.report();
  fake.begin();
  y.add_(1);
  second.run_apart([&] { y.add_(1); });
  EXPECT_EQ(fake.races().size(), 1u) << fake.report();
}

TEST_F(FakeDeviceTest, LogsWhatHappenedInOrder) {
  util::Stream stream({.device = fake.device()});
  at::Tensor x = at::ones({4}, fake.options());
  fake.begin();
  stream.run([&] { x.zero_(); }).wait();
  x.reset();
  std::vector<std::string> lines;
  for (const Entry& entry : fake.log()) lines.push_back(entry.text());
  ASSERT_EQ(lines.size(), 6u);
  const std::string side = fake.log()[1].stream.text();
  const auto event = [&](size_t entry) { return std::to_string(fake.log()[entry].event); };
  EXPECT_THAT(lines, ElementsAre("event " + event(0) + " is recorded on stream 0",
                                 side + " waits for event " + event(0), "aten::zero_ on " + side,
                                 "event " + event(3) + " is recorded on " + side,
                                 "stream 0 waits for event " + event(3), "512 bytes of stream 0 are freed"));
}

TEST_F(FakeDeviceTest, RanksComputeOnDevicesOfTheirOwn) {
  std::vector<double> losses(FakeDevice::kCount);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < FakeDevice::kCount; ++rank) {
    ranks.emplace_back([&, rank] {
      const at::Device device = fake.device(rank);
      const c10::StreamGuard on(fake.new_stream(rank));
      const auto options = tiny_options();
      auto model = nn::make_decoder(options, device);
      nn::initialize_parameters(*model, options, 7);
      for (int step = 0; step < 3; ++step) {
        at::Tensor loss = loss_of(*model, token_rows(rank, 2, 8, options.vocab_size).to(device));
        loss.backward();
        losses[static_cast<size_t>(rank)] = loss.item<double>();
      }
    });
  }
  for (std::thread& rank : ranks) rank.join();
  const auto model = make_initialized(tiny_options());
  for (int rank = 0; rank < FakeDevice::kCount; ++rank) {
    EXPECT_NEAR(losses[static_cast<size_t>(rank)],
                loss_of(*model, token_rows(rank, 2, 8, tiny_options().vocab_size)).item<double>(), 1e-5);
  }
  EXPECT_EQ(fake.report(), "");
}

TEST_F(FakeDeviceTest, SumsOfSquaresOfRowsAndColumnsAreThoseOfTheCpu) {
  const at::Tensor block = sample({5, 7}, 0.3);
  const auto sums_of = [](const at::Tensor& of) {
    std::vector<double> sums(12, 1.0);
    optim::add_squares(of, sums.data(), sums.data() + 5);
    return sums;
  };
  const std::vector<double> expected = sums_of(block), found = sums_of(on_device(block));
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(found[i], expected[i], 1e-6) << i;
  EXPECT_GT(found[5], 1);
}

TEST_F(FakeDeviceTest, AReleaseThatIsDroppedUnwaitedRunsAllTheSame) {
  comm::SingleCommunicator alone;
  const auto communicator = on_fake_device(alone);
  bool is_released = false;
  communicator->enqueue_release([&] { is_released = true; });
  EXPECT_TRUE(is_released);
}

struct ModelCase {
  std::string architecture;
  bool fused;  ///< where kernels of this project could be chosen by mistake
};

class FakeDeviceModel : public ::testing::TestWithParam<ModelCase> {};

TEST_P(FakeDeviceModel, HasTheLossAndGradientsOfTheCpu) {
  FakeDevice& fake = FakeDevice::get();
  nn::ModelOptions options = tiny_options(GetParam().architecture);
  options.fused_kernels = GetParam().fused;
  options.hidden_dropout = 0.1;
  options.attention_dropout = 0.1;
  const auto expected = make_initialized(options);
  auto model = nn::make_decoder(options, fake.device());
  nn::initialize_parameters(*model, options, 7);
  nn::checkpoint_activations(*model, {"block"});
  auto loss_of = [&](nn::Stage& stage, const at::Device& device) {
    const at::Tensor rows = token_rows(0, 3, 8, options.vocab_size).to(device);
    nn::LossOptions how;
    how.dropout = nn::DropoutChoice{.key = 5};
    at::Tensor loss = nn::loss_of(stage, rows.narrow(1, 0, 8), rows.narrow(1, 1, 8).contiguous(), how);
    loss.backward();
    return loss.item<float>();
  };
  fake.begin();
  EXPECT_NEAR(loss_of(*model, fake.device()), loss_of(*expected, at::kCPU), 1e-5);
  const auto parameters = model->named_parameters();
  for (const auto& parameter : expected->named_parameters()) {
    const at::Tensor gradient = parameters[parameter.key()].grad();
    ASSERT_EQ(gradient.device(), fake.device()) << parameter.key();
    EXPECT_TRUE(at::allclose(gradient.cpu(), parameter.value().grad(), 1e-4, 1e-5)) << parameter.key();
  }
  EXPECT_EQ(fake.report(), "");
}

INSTANTIATE_TEST_SUITE_P(Decoders, FakeDeviceModel,
                         ::testing::Values(ModelCase{"llama", false}, ModelCase{"llama", true},
                                           ModelCase{"gpt2", false}, ModelCase{"gpt2", true}),
                         [](const auto& info) {
                           return info.param.architecture + (info.param.fused ? "_fused" : "_composed");
                         });

}  // namespace
}  // namespace fsdp::testing
