#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>
#include <vector>

namespace fsdp::generate {

/// Options for choosing the next token from the scores of all tokens.
struct SamplingOptions {
  double temperature = 0.8;  ///< divisor of the scores; 0: always choose the token with the highest score
  int64_t top_k = 200;       ///< number of likeliest tokens to choose from; 0: all
  double top_p = 1.0;        ///< keeps only the likeliest of them whose probabilities add up to this
};

/// Throws Error(kUsage) for a temperature, top_k or top_p out of range.
void check_sampling(const SamplingOptions& options);

/// Chooses tokens by their scores: softmax(scores / temperature), cut to the top_k likeliest (Fan et al.:
/// Hierarchical Neural Story Generation, 2018, section 5.3), and then to the fewest whose probabilities add
/// up to top_p (Holtzman et al.: The Curious Case of Neural Text Degeneration, 2020, section 3.1). Computes
/// in double on one thread. The choice depends only on options, scores, seed, name and earlier calls.
class Sampler {
 public:
  /// `name` distinguishes samplers with the same seed.
  Sampler(const SamplingOptions& options, uint64_t seed, std::string_view name);

  /// Chooses the next token. scores: [V], of any floating-point type. Only ids below `allowed` are chosen.
  /// Ties go to the lower id. Throws Error(kDiverged) if a score is not a number.
  int64_t choose(const at::Tensor& scores, int64_t allowed);

 private:
  struct TokenCandidate {
    float score;
    int64_t id;
    bool operator<(const TokenCandidate& other) const {
      return score > other.score || (score == other.score && id < other.id);
    }
  };
  /// Draws a random number in [0, 1).
  double draw();
  void keep_likeliest();

  SamplingOptions options_;
  at::Generator generator_;
  std::vector<TokenCandidate> candidates_;  ///< member only to reuse its memory
  std::vector<double> weights_;
};

}  // namespace fsdp::generate
