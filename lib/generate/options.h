#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <vector>

namespace fsdp::generate {

/// How the next token is chosen from the scores of all.
struct SamplingOptions {
  double temperature = 0.8;  ///< scores are divided by it; 0: always the token with the highest score
  int64_t top_k = 200;       ///< only the so many likeliest tokens; 0: all
  double top_p = 1.0;        ///< of these only the likeliest that together have this probability
};

struct GenerationOptions {
  SamplingOptions sampling{};
  int64_t max_new_tokens = 256;  ///< of a sample
  int64_t num_samples = 1;
  uint64_t seed = 1234;
  std::vector<int64_t> stop_ids{};  ///< a text ends before any of these
  int64_t allowed_ids = 0;          ///< only ids below it are chosen; 0: the whole vocabulary of the model
  c10::Device device = c10::kCPU;   ///< of the model
};

}  // namespace fsdp::generate
