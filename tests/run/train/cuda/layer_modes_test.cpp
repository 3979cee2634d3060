// Runs whose blocks are CUDA graphs.

#include "run/train/layer_modes.h"

#include <gmock/gmock.h>

#include <thread>

#include "comm/backends/make_communicator.h"
#include "run/train/device.h"
#include "support/log_lines.h"
#include "support/trainer_fixture.h"

namespace fsdp::train {
namespace {

class BlockGraphsOnAGpu : public TrainerTest {
 protected:
  void SetUp() override {
    config_.model.hidden_size = 64;
    config_.training.steps = 8;
    config_.training.device = "cuda";
    config_.checkpoint.save_at_end = false;
    config_.fsdp.min_num_params = 10'000;
  }

  /// A world of one on the GPU; the losses of its steps.
  std::vector<double> losses(const std::string& name) {
    config::Config config = config_;
    config.run.output_dir = folder_ / name;
    std::exception_ptr failure;
    std::thread thread([&] {  // whose stream may become another
      try {
        auto communicator = comm::make_communicator({}, config.comm, nullptr, {}, training_device("cuda", 0));
        Trainer(config, communicator, {}).run();
      } catch (...) {
        failure = std::current_exception();
      }
    });
    thread.join();
    if (failure) std::rethrow_exception(failure);
    return testing::values_of(folder_ / name / "metrics.jsonl", "loss");
  }

  void expect_same_losses_with_graphs(const std::string& counts) {
    const std::vector<double> expected = losses("plain");
    config_.training.cuda_graphs = true;
    std::vector<double> found;
    const std::string log = testing::log_lines([&] { found = losses("graphs"); });
    EXPECT_THAT(log, ::testing::HasSubstr("CUDA graphs: " + counts));
    ASSERT_EQ(found.size(), expected.size());
    for (size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(found[i], expected[i], 1e-5 * expected[i]) << i;
  }
};

TEST_F(BlockGraphsOnAGpu, TrainAsWithoutThem) {
  // 3 blocks, forward and backward, in 5 of the 8 steps.
  expect_same_losses_with_graphs("6 recorded, 24 launched, 0 passes");
}

TEST_F(BlockGraphsOnAGpu, TrainInBf16WithAccumulationAsWithoutThem) {
  config_.mixed_precision.param_dtype = "bfloat16";
  config_.training.gradient_accumulation_steps = 2;
  expect_same_losses_with_graphs("");
}

TEST_F(BlockGraphsOnAGpu, TrainOnGptTwoWithOffloadAsWithoutThem) {
  config_.model = testing::tiny_options("gpt2");
  config_.model.hidden_size = 64;
  config_.fsdp.cpu_offload = config_.fsdp.move_grads_to_cpu = true;
  expect_same_losses_with_graphs("");
}

}  // namespace
}  // namespace fsdp::train
