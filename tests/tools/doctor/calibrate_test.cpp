#include "tools/doctor/calibrate.h"

#include <gtest/gtest.h>

#include <mutex>
#include <vector>

#include "base/util/error.h"
#include "comm/threads/thread_communicator.h"
#include "support/program_path.h"
#include "support/run_program.h"
#include "support/temporary_folder.h"

namespace fsdp::doctor {
namespace {

TEST(Calibrate, MeasuresTheLinksOfAllRanksAtOnce) {
  std::mutex mutex;
  std::vector<simulate::NetworkTable> networks;
  comm::run_ranks_as_threads(2, [&](comm::Communicator& communicator) {
    const simulate::NetworkTable network = measure_network(communicator, {.local_world_size = 2});
    const std::lock_guard lock(mutex);
    networks.push_back(network);
  });
  ASSERT_EQ(networks.size(), 2u);
  for (const simulate::NetworkTable& network : networks) {
    EXPECT_GT(network.inside.bytes_per_second, 1e6);
    EXPECT_GT(network.sum_bytes_per_second, 1e6);
    EXPECT_GT(network.encode_bytes_per_second, 1e6);
    EXPECT_GT(network.decode_bytes_per_second, network.encode_bytes_per_second);
    EXPECT_EQ(network.between.bytes_per_second, 0) << "there is one host";
  }
}

simulate::Calibration with_compute() {
  simulate::Calibration calibration{.cores_of_host = 2};
  simulate::ComputeTable& compute = calibration.compute;
  compute.dtype = "float32";
  compute.products = {{.shape = {.m = 1, .n = 1, .k = 1}, .flops_per_second = 1}};
  compute.elementwise_bytes_per_second = compute.loss_bytes_per_second = compute.optimizer_bytes_per_second =
      compute.norm_bytes_per_second = 1;
  return calibration;
}

TEST(Calibrate, KeepsTheLinksOfOtherBackendsInItsFile) {
  testing::TemporaryFolder folder;
  simulate::Calibration calibration = with_compute();
  calibration.networks["shm"].copy_bytes_per_second = 3;
  write_calibration(folder / "c.json", calibration);
  calibration.networks.clear();
  calibration.networks["gloo"].copy_bytes_per_second = 4;
  const std::string text = write_calibration(folder / "c.json", calibration);
  const simulate::Calibration both = simulate::read_calibration(folder / "c.json");
  EXPECT_EQ(both.networks.at("shm").copy_bytes_per_second, 3);
  EXPECT_EQ(both.networks.at("gloo").copy_bytes_per_second, 4);
  EXPECT_NE(text.find("  gloo:"), std::string::npos) << text;
}

TEST(Calibrate, AddsLinksAloneToAFileThatHasTheCompute) {
  testing::TemporaryFolder folder;
  const simulate::Calibration links{.networks = {{"gloo", {.copy_bytes_per_second = 4}}}};
  try {
    write_calibration(folder / "c.json", links);
    ADD_FAILURE() << "there is no file";
  } catch (const util::Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage) << error.what();
  }
  write_calibration(folder / "c.json", with_compute());
  write_calibration(folder / "c.json", links);
  const simulate::Calibration both = simulate::read_calibration(folder / "c.json");
  EXPECT_EQ(both.compute.products.size(), 1u);
  EXPECT_EQ(both.cores_of_host, 2);
  EXPECT_EQ(both.networks.at("gloo").copy_bytes_per_second, 4);
}

/// The whole of it, on a model that is quickly multiplied.
TEST(Calibrate, WritesAFileOfTheMachine) {
  testing::TemporaryFolder folder;
  const auto result = testing::run(
      {testing::program_path("fsdp-train"), "doctor", "data.sequence_length=32", "data.micro_batch_size=1",
       "model.hidden_size=64", "training.device=cpu", "--calibrate", (folder / "c.json").string()},
      {.env = {{"OMP_NUM_THREADS", "1"}}});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(result.out.find("wrote "), std::string::npos) << result.out;
  const simulate::Calibration calibration = simulate::read_calibration(folder / "c.json");
  EXPECT_GE(calibration.compute.threads, 1);
  EXPECT_GT(calibration.compute.products.size(), 10u);
  EXPECT_GT(calibration.compute.flops_per_second, 1e8);
  EXPECT_GT(calibration.compute.scale, 0);
  EXPECT_GT(calibration.cores_of_host, 0);
  EXPECT_TRUE(calibration.networks.empty()) << "one process";
}

}  // namespace
}  // namespace fsdp::doctor
