#include "tools/generate/sampler.h"

#include <ATen/CPUGeneratorImpl.h>

#include <algorithm>
#include <cmath>
#include <mutex>

#include "base/tensor/seeded_random.h"
#include "base/util/error.h"

namespace fsdp::generate {

void check_sampling(const SamplingOptions& options) {
  if (!(options.temperature >= 0) || std::isinf(options.temperature)) {
    fail(ErrorKind::kUsage, "temperature must be at least 0, but is ", options.temperature,
         "; 0 always takes the most likely token, 1 samples from the distribution that the "
         "model has learned");
  }
  if (options.top_k < 0) {
    fail(ErrorKind::kUsage, "top-k must be a number of tokens, but is ", options.top_k,
         "; 0 allows all tokens");
  }
  if (!(options.top_p > 0 && options.top_p <= 1)) {
    fail(ErrorKind::kUsage, "top-p must be a probability above 0 and at most 1, but is ", options.top_p,
         "; 1 allows all tokens");
  }
}

Sampler::Sampler(const SamplingOptions& options, uint64_t seed, std::string_view name)
    : options_(options), generator_(util::named_generator(seed, name)) {
  check_sampling(options);
}

int64_t Sampler::choose(const at::Tensor& given, int64_t allowed) {
  const at::Tensor scores = given.to(at::kFloat).contiguous();
  FSDP_CHECK(scores.dim() == 1 && allowed > 0, scores.dim(), " dimensions, ", allowed, " allowed");
  const float* data = scores.const_data_ptr<float>();
  allowed = std::min(allowed, scores.size(0));
  candidates_.clear();
  for (int64_t id = 0; id < allowed; ++id) {
    if (std::isnan(data[id])) {
      fail(ErrorKind::kDiverged, "the score of token ", id,
           " is not a number; either the weights come from a run that diverged, or the range of "
           "the compute type is too small for them");
    }
    candidates_.push_back({data[id], id});
  }
  if (options_.temperature == 0) return std::min_element(candidates_.begin(), candidates_.end())->id;
  keep_likeliest();
  // Candidates may not be sorted by score.
  const float highest = std::min_element(candidates_.begin(), candidates_.end())->score;
  double sum = 0;
  weights_.clear();
  for (const TokenCandidate& candidate : candidates_) {
    weights_.push_back(std::exp((static_cast<double>(candidate.score) - static_cast<double>(highest)) /
                                options_.temperature));
    sum += weights_.back();
  }
  if (options_.top_p < 1) {
    double most = options_.top_p * sum, kept = 0;
    size_t count = 0;
    while (count < weights_.size() && kept < most) kept += weights_[count++];
    weights_.resize(count);
    sum = kept;
  }
  double left = draw() * sum;
  for (size_t i = 0; i < weights_.size(); ++i) {
    left -= weights_[i];
    if (left < 0) return candidates_[i].id;
  }
  // Reached only through rounding. Chooses the last candidate with a nonzero weight.
  size_t last = weights_.size() - 1;
  while (last > 0 && weights_[last] == 0) --last;
  return candidates_[last].id;
}

void Sampler::keep_likeliest() {
  const bool cuts = options_.top_k > 0 && options_.top_k < static_cast<int64_t>(candidates_.size());
  if (cuts) {
    std::nth_element(candidates_.begin(), candidates_.begin() + options_.top_k, candidates_.end());
    candidates_.resize(static_cast<size_t>(options_.top_k));
  }
  // nth_element does not sort.
  if (cuts || options_.top_p < 1) std::sort(candidates_.begin(), candidates_.end());
}

double Sampler::draw() {
  std::lock_guard lock(generator_.mutex());
  auto* generator = at::check_generator<at::CPUGeneratorImpl>(generator_);
  return static_cast<double>(generator->random64() >> 11) * 0x1p-53;
}

}  // namespace fsdp::generate
