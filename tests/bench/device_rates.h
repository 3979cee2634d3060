#pragma once

// What kernel_bench and gemm_bench have in common: the sizes of a model's block, times of work on a device,
// and the figures that they print, as a table and, in the last line, as one JSON object for
// scripts/gpu_visit.

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/device/cuda.h"
#include "base/util/error.h"

namespace fsdp::bench {

/// The words of the command line: `device=cuda rows=8192 width=2048 ...`. The defaults are llama-1.3b's, with
/// 4 sequences of 2048.
struct BlockSizes {
  std::string device = "cuda", architecture = "llama";
  int64_t rows = 8192, tokens = 2048, width = 2048, key_width = 2048, heads = 16, inner = 5504;
  int64_t vocabulary = 32000, milliseconds = 30;  ///< milliseconds: of each measurement
  int64_t trials = 0;                             ///< 1: gemm_bench lets trials choose

  static BlockSizes read(int count, char** words) {
    BlockSizes sizes;
    const std::pair<std::string_view, int64_t*> numbers[] = {{"rows", &sizes.rows},
                                                             {"tokens", &sizes.tokens},
                                                             {"width", &sizes.width},
                                                             {"key_width", &sizes.key_width},
                                                             {"heads", &sizes.heads},
                                                             {"inner", &sizes.inner},
                                                             {"trials", &sizes.trials},
                                                             {"vocabulary", &sizes.vocabulary},
                                                             {"milliseconds", &sizes.milliseconds}};
    for (int i = 1; i < count; ++i) {
      const std::string word = words[i];
      const size_t equals = std::min(word.find('='), word.size());
      const std::string name = word.substr(0, equals), value = word.substr(std::min(equals + 1, word.size()));
      const auto* number = std::ranges::find(numbers, name, [](const auto& one) { return one.first; });
      if (name == "device" || name == "architecture") {
        (name == "device" ? sizes.device : sizes.architecture) = value;
      } else if (number != std::end(numbers) && std::atoll(value.c_str()) > 0) {
        *number->second = std::atoll(value.c_str());
      } else {
        fail(
            ErrorKind::kUsage,
            "expected words such as device=cuda, architecture=gpt2 and rows=8192, with numbers from 1 on; found \"",
            word, "\"; see tests/bench/device_rates.h");
      }
    }
    if (sizes.device == "cuda") util::require_cuda("device=cuda");
    return sizes;
  }
  at::Device on() const { return {device}; }
  bool is_gpt2() const { return architecture == "gpt2"; }
};

/// Larger than the second-level caches of GPUs: work goes over so many bytes before it meets the same again.
inline constexpr int64_t kBeyondCaches = 256 << 20;

/// Number of sets of operands of `bytes` each, in turns.
inline int64_t turns(int64_t bytes) {
  return std::clamp<int64_t>(kBeyondCaches / std::max<int64_t>(bytes, 1), 1, 64);
}

class Rates {
 public:
  explicit Rates(const BlockSizes& sizes)
      : seconds_(1e-3 * static_cast<double>(sizes.milliseconds)),
        last_(at::zeros({1}, at::TensorOptions().device(sizes.on()))) {}

  /// Measures `work`, which gets the number of its call, and which moves `bytes` and computes `flops`.
  double measure(const std::string& name, double bytes, double flops,
                 const std::function<void(int64_t)>& work) {
    const double seconds = seconds_of(work);
    std::printf("| %-40s | %10.1f | %8.3f | %8.1f |\n", name.c_str(), 1e6 * seconds, bytes / seconds * 1e-12,
                flops / seconds * 1e-12);
    std::string key = name;
    std::ranges::replace_if(
        key, [](char c) { return c == ' ' || c == ','; }, '_');
    add_figure(key + "_us", 1e6 * seconds);
    if (flops > 0) add_figure(key + "_tflops", flops / seconds * 1e-12);
    if (flops == 0) add_figure(key + "_tb_s", bytes / seconds * 1e-12);
    return seconds;
  }
  void add_figure(const std::string& name, double value) { figures_.emplace_back(name, value); }

  static void print_head() {
    std::printf("| %-40s | %10s | %8s | %8s |\n| --- | --- | --- | --- |\n", "", "us", "TB/s", "TFLOP/s");
  }
  void print_figures() const {
    for (size_t i = 0; i < figures_.size(); ++i) {
      std::printf("%s\"%s\": %.6g", i == 0 ? "{" : ", ", figures_[i].first.c_str(), figures_[i].second);
    }
    std::printf("}\n");
  }

 private:
  using Clock = std::chrono::steady_clock;

  void wait() { last_.item<float>(); }

  double round_of(const std::function<void(int64_t)>& work, int64_t calls) {
    wait();
    const auto begin = Clock::now();
    for (int64_t i = 0; i < calls; ++i) work(i);
    wait();
    return std::chrono::duration<double>(Clock::now() - begin).count();
  }

  /// The median of rounds, in each of which many calls are launched before the host waits.
  double seconds_of(const std::function<void(int64_t)>& work) {
    constexpr int kRounds = 5;
    work(0);
    const double once = std::max(round_of(work, 3) / 3, 1e-7);
    const int64_t calls = std::clamp<int64_t>(static_cast<int64_t>(seconds_ / kRounds / once), 1, 2000);
    std::vector<double> rounds;
    for (int i = 0; i < kRounds; ++i) rounds.push_back(round_of(work, calls) / static_cast<double>(calls));
    std::ranges::sort(rounds);
    return rounds[kRounds / 2];
  }

  double seconds_;
  at::Tensor last_;
  std::vector<std::pair<std::string, double>> figures_;
};

/// Calls `body`; an Error ends the program with one sentence.
inline int run_bench(const char* program, const std::function<void()>& body) {
  try {
    body();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", program, error.what());
    return 1;
  }
  return 0;
}

}  // namespace fsdp::bench
