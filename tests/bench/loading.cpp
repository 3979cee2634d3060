// loading TOKENS ROWS LENGTH BATCHES: microseconds a batch of ROWS samples of LENGTH tokens from the uint16
// file TOKENS: made when asked for, and when a thread makes them ahead while the caller waits 2 ms for each
// (as in a step that computes). Numbers a line, for loading.py.

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "base/util/error.h"
#include "data/loading/loader.h"
#include "data/loading/prefetch.h"

namespace {

using namespace fsdp::data;
using Clock = std::chrono::steady_clock;

double microseconds(Clock::duration duration) {
  return std::chrono::duration<double, std::micro>(duration).count();
}

int run(int argc, char** argv) {
  if (argc != 5) fsdp::fail(fsdp::ErrorKind::kUsage, "usage: loading TOKENS ROWS LENGTH BATCHES");
  DataOptions options;
  options.train = {argv[1]};
  options.micro_batch_size = std::atoll(argv[2]);
  options.sequence_length = std::atoll(argv[3]);
  const int64_t batches = std::atoll(argv[4]), rows = options.micro_batch_size;
  const TrainLoader loader(options, 65536, 1, {});
  int64_t sum = 0;  // so that nothing is left out
  auto begin = Clock::now();
  for (int64_t i = 0; i < batches; ++i) sum += *loader.batch(i * rows, 0).inputs.const_data_ptr<int64_t>();
  std::printf("%.3f\n", microseconds(Clock::now() - begin) / static_cast<double>(batches));

  const PrefetchingBatches ahead(loader, {.depth = options.prefetch_batches});
  Clock::duration waited{};
  for (int64_t i = 0; i < batches; ++i) {
    begin = Clock::now();
    sum += *ahead.batch(i * rows, 0).inputs.const_data_ptr<int64_t>();
    waited += Clock::now() - begin;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  std::printf("%.3f\n", microseconds(waited) / static_cast<double>(batches));
  return sum == 0;
}

}  // namespace

int main(int argc, char** argv) {
  return fsdp::util::run_guarded([&] { return run(argc, argv); });
}
