// engine_cost CONFIG.toml [section.key=value ...]: what the engine costs where there is nobody to shard with.
//
// Forward and backward of one batch of the config's model on training.device, in turns without an engine (the
// parameters themselves in mixed_precision.param_dtype) and under fully_shard() in a world of one. In fp32
// the difference is hooks, buffers and order; in bf16 also what mixed precision is about: fp32 shards are
// cast before each use, and gradients added up in fp32. Prints one JSON object of medians and of the ratios
// of single rounds; not a test.

#include <ATen/core/grad_mode.h>
#include <ATen/ops/randint.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/dtype/dtype.h"
#include "base/util/clock.h"
#include "base/util/error.h"
#include "comm/backends/make_communicator.h"
#include "model/nn/decoder.h"
#include "model/nn/loss.h"
#include "run/train/device.h"
#include "setup/config/load.h"
#include "shard/engine/fully_shard.h"

namespace fsdp {
namespace {

constexpr int kRounds = 5;
constexpr int kSteps = 10;
constexpr int kWarmUp = 3;

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

class Side {
 public:
  Side(const config::Config& config, at::Device device, bool under_engine)
      : model_(nn::make_decoder(config.model, device)) {
    {
      at::NoGradGuard no_grad;
      for (const at::Tensor& parameter : model_->parameters()) at::Tensor(parameter).normal_(0, 0.02);
    }
    if (under_engine) {
      engine_ = shard::fully_shard(*model_, config::shard_options(config),
                                   comm::make_communicator({}, config.comm, nullptr, {}, device));
    } else {
      model_->to(util::scalar_type(config.mixed_precision.param_dtype));
    }
    const auto tokens = [&] {
      return at::randint(config.model.vocab_size, {config.data.micro_batch_size, config.data.sequence_length},
                         at::TensorOptions().dtype(at::kLong).device(device));
    };
    inputs_ = tokens();
    targets_ = tokens();
  }

  size_t units() const { return engine_ ? engine_->units().size() : 0; }

  /// Seconds of each counted step.
  std::vector<double> round() {
    std::vector<double> seconds;
    for (int i = 0; i < kWarmUp + kSteps; ++i) {
      const auto begin = std::chrono::steady_clock::now();
      engine_ ? engine_->zero_gradients() : model_->zero_grad();
      at::Tensor loss = nn::loss_of(*model_, inputs_, targets_, {});
      loss.backward();
      loss.detach().add(1).item<double>();  // launched behind backward: the host waits for all of it
      if (i >= kWarmUp) seconds.push_back(util::seconds_since(begin));
    }
    return seconds;
  }

 private:
  std::shared_ptr<nn::Stage> model_;
  std::shared_ptr<shard::Engine> engine_;
  at::Tensor inputs_, targets_;
};

void measure(const config::Config& config) {
  const at::Device device = train::training_device(config.training.device, 0);
  Side without(config, device, false), with(config, device, true);
  std::vector<double> all_without, all_with, ratios;
  for (int round = 0; round < kRounds; ++round) {
    const std::vector<double> a = without.round(), b = with.round();
    all_without.insert(all_without.end(), a.begin(), a.end());
    all_with.insert(all_with.end(), b.begin(), b.end());
    ratios.push_back(median(b) / median(a));
  }
  const nlohmann::ordered_json json = {
      {"without_s", median(all_without)},
      {"with_s", median(all_with)},
      {"units", with.units()},
      {"least_ratio", *std::min_element(ratios.begin(), ratios.end())},
      {"largest_ratio", *std::max_element(ratios.begin(), ratios.end())},
  };
  std::printf("%s\n", json.dump().c_str());
}

}  // namespace
}  // namespace fsdp

int main(int argc, char** argv) {
  return fsdp::util::run_guarded([&] {
    if (argc < 2) {
      fsdp::fail(fsdp::ErrorKind::kUsage, "usage: engine_cost CONFIG.toml [section.key=value ...]");
    }
    fsdp::measure(fsdp::config::load_config(argv[1], std::vector<std::string>(argv + 2, argv + argc)));
    return 0;
  });
}
