// engine_overhead [steps]: what the engine's own bookkeeping costs a step in a world of 8 and in one of 1024.
//
// A chain of 256 units of one 32 x 32 matrix each is trained as rank 0 of both worlds over a communicator
// that moves nothing, in turns with the same chain without an engine; what a step takes more than without is
// the engine's. Times are CPU time of the one thread that does it all, so that a busy machine disturbs them
// little. Not a test: figures of a machine vary, so they are printed and not judged.

#include <ATen/Functions.h>
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "comm/idle_communicator.h"
#include "shard/engine.h"
#include "support/tiny_models.h"

namespace fsdp {
namespace {

constexpr int64_t kUnits = 256;
constexpr int64_t kWidth = 32;

double cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

class Run {
 public:
  /// 0: without an engine.
  explicit Run(int world_size) : model_(std::make_shared<testing::ChainStage>(kUnits, kWidth)) {
    if (world_size == 0) return;
    shard::ShardOptions options;
    options.min_num_params = 1;
    engine_ = fully_shard(*model_, options, std::make_shared<comm::IdleCommunicator>(world_size));
  }

  void step() {
    double begin = cpu_seconds();
    if (engine_) engine_->zero_gradients();
    model_->forward(input_).sum().backward();
    seconds_.push_back(cpu_seconds() - begin);
    if (!engine_) model_->zero_grad();
  }

  void forget() { seconds_.clear(); }

  double median_us() const {
    std::vector<double> sorted = seconds_;
    std::sort(sorted.begin(), sorted.end());
    return 1e6 * sorted[sorted.size() / 2];
  }

 private:
  std::shared_ptr<testing::ChainStage> model_;
  std::shared_ptr<shard::Engine> engine_;
  at::Tensor input_ = at::ones({1, kWidth});
  std::vector<double> seconds_;
};

}  // namespace
}  // namespace fsdp

int main(int argc, char** argv) {
  const int steps = argc > 1 ? std::max(1, std::atoi(argv[1])) : 200;
  fsdp::Run plain(0), small(8), large(1024);
  for (int i = 0; i < steps + 3; ++i) {
    for (fsdp::Run* run : {&plain, &small, &large}) {
      if (i == 3) run->forget();  // the order of units is known, and the pool has its buffers
      run->step();
    }
  }
  const double without = plain.median_us(), of_8 = small.median_us(), of_1024 = large.median_us();
  const double units = static_cast<double>(fsdp::kUnits + 1);
  std::printf("without an engine  %9.1f us a step of %ld units\n", without,
              static_cast<long>(fsdp::kUnits + 1));
  std::printf("    8 ranks        %9.1f us, the engine %6.2f us a unit\n", of_8, (of_8 - without) / units);
  std::printf(" 1024 ranks        %9.1f us, the engine %6.2f us a unit\n", of_1024,
              (of_1024 - without) / units);
  std::printf("engine's ratio     %9.3f\n", (of_1024 - without) / (of_8 - without));
  return 0;
}
