#include "state/gguf/rotary_scaling.h"

#include <gtest/gtest.h>

namespace fsdp::gguf {
namespace {

TEST(RotaryScaling, IsFoundByWhatItDoesToEachFrequency) {
  struct Case {
    double factor, high, theta;
    int64_t original, width;
  };
  // Llama 3.1 and 3.2, other thresholds, and heads with one frequency or none between the thresholds.
  for (const Case& known : {Case{8, 4, 500000, 8192, 128},
                            {32, 4, 500000, 8192, 64},
                            {4, 9.5, 10000, 4096, 64},
                            {8, 4, 10000, 8, 8},
                            {8, 4, 1e12, 8192, 8}}) {
    nn::ModelOptions options;
    options.head_dim = known.width;
    options.rope_theta = known.theta;
    options.rope_type = "llama3";
    options.rope_factor = known.factor;
    options.rope_high_freq_factor = known.high;
    options.rope_original_length = known.original;
    nlohmann::json scaling;
    ASSERT_TRUE(find_scaling(frequency_divisors(options), known.theta, scaling)) << known.original;
    EXPECT_EQ(scaling["factor"], known.factor);
    EXPECT_EQ(scaling["high_freq_factor"], known.high);
    EXPECT_EQ(scaling["original_max_position_embeddings"], known.original);
  }
  nlohmann::json scaling;
  EXPECT_FALSE(find_scaling({1, 2, 1, 8}, 10000, scaling));
  EXPECT_FALSE(find_scaling({}, 10000, scaling));
}

}  // namespace
}  // namespace fsdp::gguf
