#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

namespace fsdp::generate {

/// How the next token is chosen by the scores of all tokens.
struct SamplingOptions {
  double temperature = 0.8;  ///< scores are divided by it; 0: always the token with the highest score
  int64_t top_k = 200;       ///< how many of the likeliest tokens to choose from; 0: all
  double top_p = 1.0;        ///< of these only the likeliest whose probabilities add up to this
};

/// Throws Error(kUsage) for a temperature, top_k or top_p out of range.
void check_sampling(const SamplingOptions& options);

/// Chooses tokens by their scores: softmax(scores / temperature), cut to the top_k likeliest (Fan et al.:
/// Hierarchical Neural Story Generation, 2018, section 5.3), of these to the fewest whose probabilities add
/// up to top_p (Holtzman et al.: The Curious Case of Neural Text Degeneration, 2020, section 3.1). Computes
/// in double, on one thread; the choice depends only on options, scores, seed, name and the calls before.
class Sampler {
 public:
  /// `name` distinguishes samplers of the same seed.
  Sampler(const SamplingOptions& options, uint64_t seed, std::string_view name);

  /// scores: [V], of any floating-point type; only ids below `allowed` count. Ties go to the lower id.
  /// Throws Error(kDiverged) when a score is not a number.
  int64_t choose(const at::Tensor& scores, int64_t allowed);

 private:
  struct Candidate {
    float score;
    int64_t id;
    bool operator<(const Candidate& other) const {
      return score > other.score || (score == other.score && id < other.id);
    }
  };
  /// In [0, 1).
  double draw();
  void keep_likeliest();

  SamplingOptions options_;
  at::Generator generator_;
  std::vector<Candidate> candidates_;  ///< kept for its memory
  std::vector<double> weights_;
};

}  // namespace fsdp::generate
