// engine_overhead [steps]: what the engine's own bookkeeping costs a step in a world of 8 and in one of 1024.
// A model of many units of a few thousand parameters, so that compute is next to nothing, is trained as rank
// 0 of both worlds in turns, over a communicator that moves nothing. Not a test: times of a machine vary, so
// they are printed, and the ratio of the medians beside them.

#include <ATen/Functions.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "comm/idle_communicator.h"
#include "nn/decoder.h"
#include "nn/initialize.h"
#include "nn/loss.h"
#include "shard/engine.h"

namespace fsdp {
namespace {

constexpr int64_t kLayers = 48;

struct Run {
  explicit Run(int world) : world_size(world) {
    nn::ModelOptions options;
    options.vocab_size = 32;
    options.hidden_size = 16;
    options.intermediate_size = 32;
    options.num_hidden_layers = kLayers;
    options.num_attention_heads = options.num_key_value_heads = 2;
    model = nn::make_decoder(options);
    nn::initialize_parameters(*model, options, 1);
    shard::ShardOptions shard;
    shard.wrap_stages = {"block"};
    engine = fully_shard(*model, shard, std::make_shared<comm::IdleCommunicator>(world));
    tokens = at::zeros({1, 4}, at::kLong);
  }

  double step_seconds() {
    auto begin = std::chrono::steady_clock::now();
    engine->zero_gradients();
    nn::next_token_loss(model->forward(tokens), tokens).backward();
    seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
    return seconds.back();
  }

  double median() const {
    std::vector<double> sorted = seconds;
    std::sort(sorted.begin(), sorted.end());
    return sorted[sorted.size() / 2];
  }

  int world_size;
  std::shared_ptr<nn::Stage> model;
  std::shared_ptr<shard::Engine> engine;
  at::Tensor tokens;
  std::vector<double> seconds;
};

}  // namespace
}  // namespace fsdp

int main(int argc, char** argv) {
  const int steps = argc > 1 ? std::atoi(argv[1]) : 200;
  fsdp::Run small(8), large(1024);
  for (fsdp::Run* run : {&small, &large}) run->step_seconds();  // the order of units, and the pool
  small.seconds.clear();
  large.seconds.clear();
  for (int i = 0; i < steps; ++i) {
    small.step_seconds();
    large.step_seconds();
  }
  for (const fsdp::Run* run : {&small, &large}) {
    std::printf("%5d ranks  %7.3f ms a step of %zu units\n", run->world_size, 1e3 * run->median(),
                run->engine->units().size());
  }
  std::printf("ratio        %7.3f\n", large.median() / small.median());
  return 0;
}
