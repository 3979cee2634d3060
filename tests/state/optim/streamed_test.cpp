// Updates on a device of states, and of values, that are in host memory.

#include <gtest/gtest.h>

#include "base/device/pinned_memory.h"
#include "state/optim/shards.h"
#include "support/fake_device.h"

namespace fsdp::optim {
namespace streamed_test {

using testing::FakeDevice;

struct Case {
  std::string name;
  StateType states = StateType::kFloat32;
  bool value_on_host = false;
  at::ScalarType values = at::kFloat;
};

/// More than two pieces, with blocks of 8 bits, and a vector.
constexpr int64_t kRows = 2100, kColumns = 8192, kVector = 53, kNumel = kRows * kColumns + kVector;
static_assert(kNumel > 2 * kStreamedPiece);

class Streamed : public ::testing::TestWithParam<Case> {
 protected:
  static OptimizerOptions options(OptimizerOffload offload) {
    OptimizerOptions options;
    options.name = GetParam().name;
    options.momentum = options.name == "sgd" ? 0.9 : 0;
    options.fused = false;
    options.weight_decay = 0.1;
    options.state_dtype = GetParam().states;
    options.rounding_seed = 17;
    options.no_decay = {"*norm*"};
    options.offload = offload;
    return options;
  }

  static std::unique_ptr<Optimizer> make(OptimizerOffload offload) {
    const at::Device device = FakeDevice::get().device();
    const OptimizerOptions options = Streamed::options(offload);
    const at::Tensor values = random_values(kNumel, "values");
    FlatParameter parameter = parameter_of_tensors(
        options, {{"layers.0.weight", values.narrow(0, 0, kRows * kColumns).view({kRows, kColumns})},
                  {"layers.0.norm", values.narrow(0, kRows * kColumns, kVector)}});
    parameter.value = parameter.value.to(GetParam().values);
    const bool on_host = offload == OptimizerOffload::kStream && GetParam().value_on_host;
    parameter.value = on_host ? util::empty_pinned(kNumel, GetParam().values, device).copy_(parameter.value)
                              : parameter.value.to(device);
    parameter.device = device;
    return make_optimizer(options, {parameter});
  }
};

INSTANTIATE_TEST_SUITE_P(All, Streamed,
                         ::testing::Values(Case{"adamw"}, Case{"adamw", StateType::kInt8},
                                           Case{"lion", StateType::kBFloat16, true}, Case{"sgd"},
                                           Case{"adam", StateType::kFloat32, true},
                                           Case{"adamw", StateType::kInt8, true, at::kBFloat16}),
                         [](const auto& info) {
                           return info.param.name + "_" + util::name_of(info.param.states) +
                                  (info.param.value_on_host ? "_values_too" : "") +
                                  (info.param.values == at::kFloat ? "" : "_of_16_bits");
                         });

TEST_P(Streamed, HaveTheBitsOfThoseOnTheDevice) {
  FakeDevice::get().begin();
  const auto expected = make(OptimizerOffload::kNone), found = make(OptimizerOffload::kStream);
  const at::Tensor gradient = random_values(kNumel, "gradient").to(FakeDevice::get().device());
  for (int step = 1; step <= 2; ++step) {
    expected->step({gradient.clone()}, 1e-2, 0.5);
    found->step({gradient.clone()}, 1e-2, 0.5);
  }
  const auto equal = [](const at::Tensor& a, const at::Tensor& b) { return a.cpu().equal(b.cpu()); };
  EXPECT_TRUE(equal(found->parameters()[0].value, expected->parameters()[0].value));
  for (const std::string& name : found->state_names()) {
    const auto mine = found->state_memory(name, 0), theirs = expected->state_memory(name, 0);
    for (size_t k = 0; k < mine.size(); ++k) {
      ASSERT_EQ(mine[k].defined(), theirs[k].defined());
      if (!mine[k].defined()) continue;
      EXPECT_TRUE(mine[k].is_cpu()) << name;
      EXPECT_TRUE(equal(mine[k], theirs[k])) << name << ", " << k;
    }
  }
  EXPECT_EQ(FakeDevice::get().report(), "");
}

TEST_P(Streamed, LeaveNothingOnTheDevice) {
  const auto optimizer = make(OptimizerOffload::kStream);
  const size_t before = FakeDevice::get().live_bytes();
  optimizer->step({random_values(kNumel, "gradient").to(FakeDevice::get().device())}, 1e-2);
  EXPECT_EQ(FakeDevice::get().live_bytes(), before);
}

}  // namespace streamed_test
}  // namespace fsdp::optim
