// engine_overhead [steps [cpu | cuda]]: what the engine's own bookkeeping costs a step in a world of 8 and in
// one of 1024.
//
// A chain of 256 units of one 32 x 32 matrix each is trained as rank 0 of both worlds over a communicator
// that moves nothing, in turns with the same chain without an engine; what a step takes more than without is
// the engine's. Times are CPU time of the one thread that does it all, so that a busy machine disturbs them
// little; on a GPU, where backward has a thread of its own and such small kernels wait for the host, they are
// wall time to the end of the step's last kernel. Not a test: figures of a machine vary, so they are printed
// and not judged.

#include <ATen/Functions.h>
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "base/device/cuda.h"
#include "base/util/error.h"
#include "comm/fake/fake_communicator.h"
#include "shard/engine/fully_shard.h"
#include "support/tiny_models.h"

namespace fsdp {
namespace {

constexpr int64_t kUnits = 256;
constexpr int64_t kWidth = 32;

double seconds_of(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

class Run {
 public:
  /// 0: without an engine.
  Run(int world_size, at::Device device)
      : device_(device),
        clock_(device.is_cpu() ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC),
        model_(std::make_shared<testing::ChainStage>(kUnits, kWidth)),
        input_(at::ones({1, kWidth}, at::TensorOptions().device(device))) {
    model_->to(device);
    if (world_size == 0) return;
    shard::ShardOptions options;
    options.min_num_params = 1;
    engine_ = fully_shard(*model_, options, comm::make_fake_communicator(world_size, device));
  }

  void step() {
    double begin = seconds_of(clock_);
    if (engine_) engine_->zero_gradients();
    at::Tensor sum = model_->forward(input_).sum();
    sum.backward();
    if (!device_.is_cpu()) sum.detach().add(1).item<float>();  // behind all that backward has launched
    seconds_.push_back(seconds_of(clock_) - begin);
    if (!engine_) model_->zero_grad();
  }

  void forget() { seconds_.clear(); }

  double median_us() const {
    std::vector<double> sorted = seconds_;
    std::sort(sorted.begin(), sorted.end());
    return 1e6 * sorted[sorted.size() / 2];
  }

 private:
  at::Device device_;
  clockid_t clock_;
  std::shared_ptr<testing::ChainStage> model_;
  std::shared_ptr<shard::Engine> engine_;
  at::Tensor input_;
  std::vector<double> seconds_;
};

at::Device device_of(std::string_view name) {
  if (name == "cpu") return at::kCPU;
  if (name != "cuda") fail(ErrorKind::kUsage, "expected cpu or cuda; found ", name);
  util::set_cuda_device(0);
  return {at::kCUDA, 0};
}

void measure(int steps, at::Device device) {
  Run plain(0, device), small(8, device), large(1024, device);
  for (int i = 0; i < steps + 3; ++i) {
    for (Run* run : {&plain, &small, &large}) {
      if (i == 3) run->forget();  // the order of units is known, and the pool has its buffers
      run->step();
    }
  }
  const double without = plain.median_us(), of_8 = small.median_us(), of_1024 = large.median_us();
  const double units = static_cast<double>(kUnits + 1);
  std::printf("without an engine  %9.1f us a step of %ld units\n", without, static_cast<long>(kUnits + 1));
  std::printf("    8 ranks        %9.1f us, the engine %6.2f us a unit\n", of_8, (of_8 - without) / units);
  std::printf(" 1024 ranks        %9.1f us, the engine %6.2f us a unit\n", of_1024,
              (of_1024 - without) / units);
  std::printf("engine's ratio     %9.3f\n", (of_1024 - without) / (of_8 - without));
}

}  // namespace
}  // namespace fsdp

int main(int argc, char** argv) {
  return fsdp::util::run_guarded([&] {
    const int steps = argc > 1 ? std::max(1, std::atoi(argv[1])) : 200;
    fsdp::measure(steps, fsdp::device_of(argc > 2 ? argv[2] : "cpu"));
    return 0;
  });
}
