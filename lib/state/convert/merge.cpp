#include "state/convert/merge.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <numeric>
#include <utility>

#include "base/util/error.h"

namespace fsdp::checkpoint {
namespace {

constexpr double kLeastNorm = 1e-8;   ///< of a tensor that has a direction
constexpr double kParallel = 0.9995;  ///< cosine beyond which the arc is computed as a line

bool adds_differences(const MergeOptions& options) {
  return options.method == MergeMethod::kTaskArithmetic || options.method == MergeMethod::kTies;
}

void require_option(const MergeOptions& options, bool is_set, const char* name, bool has_it,
                    const char* methods) {
  if (!is_set || has_it) return;
  fail(ErrorKind::kUsage, name, ": expected ", methods, ", which alone has it; found ", options.method.name(),
       "; change one of the two");
}

/// How many times each number occurs.
class Histogram {
 public:
  explicit Histogram(size_t numbers) : counts_(numbers) {}
  void add(uint32_t number) { ++counts_[number]; }
  /// The number of which, with all larger ones, there are at least `rank`, and how many larger ones there
  /// are.
  std::pair<uint32_t, int64_t> from_top(int64_t rank) const {
    int64_t above = 0;
    for (size_t i = counts_.size(); i-- > 0; above += counts_[i]) {
      if (above + counts_[i] >= rank) return {static_cast<uint32_t>(i), above};
    }
    FSDP_CHECK(false, "expected ", rank, " numbers, found ", above);
  }

 private:
  std::vector<int64_t> counts_;
};

uint32_t bits_of(double x) {
  const auto magnitude = static_cast<float>(std::abs(x));
  uint32_t bits = 0;
  std::memcpy(&bits, &magnitude, sizeof(bits));
  return bits;
}

}  // namespace

void check_merge(const MergeOptions& options, size_t models, bool has_base) {
  if (models < 2 && !has_base) {
    fail(ErrorKind::kUsage, "expected at least two checkpoints to average; found ", models,
         "; name more, or the last ones of a run with `last`");
  }
  const bool is_slerp = options.method == MergeMethod::kSlerp, is_ties = options.method == MergeMethod::kTies,
             adds = adds_differences(options);
  if (is_slerp && models != 2) {
    fail(ErrorKind::kUsage, "method slerp: expected two models; found ", models, "; name two, or use linear");
  }
  if (adds != has_base) {
    fail(ErrorKind::kUsage, "base: expected ", adds ? "the model from which the others were tuned" : "none",
         " with method ", options.method.name(), "; found ", has_base ? "one" : "none", "; ",
         adds ? "name it" : "leave it out, or use task_arithmetic or ties");
  }
  require_option(options, options.t.has_value(), "t", is_slerp, "method slerp");
  require_option(options, options.density.has_value(), "density", is_ties, "method ties");
  require_option(options, options.lambda.has_value(), "lambda", adds, "method task_arithmetic or ties");
  require_option(options, options.normalize.has_value(), "normalize", !is_slerp,
                 "method linear, task_arithmetic or ties");
  require_option(options, !options.weights.empty(), "weights", !is_slerp,
                 "method linear, task_arithmetic or ties");
  const auto require_share = [](const std::optional<double>& value, const char* name) {
    if (!value || (*value >= 0 && *value <= 1)) return;
    fail(ErrorKind::kUsage, name, ": expected a number from 0 to 1; found ", *value);
  };
  require_share(options.t, "t");
  require_share(options.density, "density");
  if (!options.weights.empty() && options.weights.size() != models) {
    fail(ErrorKind::kUsage, "weights: expected one for each of ", models, " models; found ",
         options.weights.size());
  }
  const double sum = std::accumulate(options.weights.begin(), options.weights.end(), 0.0);
  const bool is_finite = std::isfinite(sum) && std::isfinite(options.lambda.value_or(1));
  const bool divides = options.normalize.value_or(!adds);
  if (!is_finite || (!adds && !options.weights.empty() && divides && std::abs(sum) < kLeastNorm)) {
    fail(ErrorKind::kUsage, "weights: expected finite numbers whose sum is not 0; found a sum of ", sum);
  }
}

Merge::Merge(MergeOptions options, std::vector<Weights> models, std::optional<Weights> base)
    : options_(std::move(options)), models_(std::move(models)), base_(std::move(base)) {
  check_merge(options_, models_.size(), base_.has_value());
  for (size_t i = 0; i < models_.size() + 3; ++i) {
    memory_.push_back(at::empty({kElementsAtOnce}, at::TensorOptions().dtype(at::kDouble)));
  }
}

at::Tensor Merge::read(const Weights& weights, const std::string& name, int64_t begin, int64_t count,
                       size_t place) {
  const at::Tensor values = memory_[place].narrow(0, 0, count);
  weights.read_range_into(name, begin, values);
  return values;
}

at::Tensor Merge::merged(const std::string& name, int64_t begin, int64_t count) {
  FSDP_CHECK(count <= kElementsAtOnce);
  if (tensor_ != name) note_tensor(name);
  return adds_differences(options_) ? of_differences(name, begin, count) : of_models(name, begin, count);
}

void Merge::note_tensor(const std::string& name) {
  tensor_.clear();
  if (options_.method == MergeMethod::kSlerp) factors_ = arc(name);
  least_.assign(models_.size(), 0);
  const int64_t numel = models_.front().numel(name);
  const double density = options_.density.value_or(1);
  if (density < 1 && numel > 0) {
    const auto kept = std::max<int64_t>(1, static_cast<int64_t>(density * static_cast<double>(numel)));
    for (size_t i = 0; i < models_.size(); ++i) {
      least_[i] =
          density > 0 ? least_magnitude(models_[i], name, kept) : std::numeric_limits<float>::infinity();
    }
  }
  tensor_ = name;
}

at::Tensor Merge::of_models(const std::string& name, int64_t begin, int64_t count) {
  const bool is_slerp = options_.method == MergeMethod::kSlerp;
  double divisor = 0;
  at::Tensor sum = read(models_.front(), name, begin, count, 0);
  for (size_t i = 0; i < models_.size(); ++i) {
    const double factor = is_slerp ? factors_[i] : weight(i);
    divisor += factor;
    if (i == 0) {
      sum.mul_(factor);
    } else {
      sum.add_(read(models_[i], name, begin, count, 1), factor);
    }
  }
  return is_slerp || !options_.normalize.value_or(true) ? sum : sum.div_(divisor);
}

std::array<double, 2> Merge::arc(const std::string& name) {
  const double t = options_.t.value_or(0.5);
  double of_first = 0, of_second = 0, of_both = 0;
  const int64_t numel = models_.front().numel(name);
  for (int64_t at = 0; at < numel; at += kElementsAtOnce) {
    const int64_t count = std::min(kElementsAtOnce, numel - at);
    const at::Tensor first = read(models_[0], name, at, count, 0),
                     second = read(models_[1], name, at, count, 1);
    of_first += first.dot(first).item<double>();
    of_second += second.dot(second).item<double>();
    of_both += first.dot(second).item<double>();
  }
  const auto norm = [](double square) {
    const double root = std::sqrt(square);
    return root > kLeastNorm ? root : 1;
  };
  const double cosine = std::clamp(of_both / (norm(of_first) * norm(of_second)), -1.0, 1.0);
  if (!(std::abs(cosine) <= kParallel)) return {1 - t, t};
  const double angle = std::acos(cosine);
  return {std::sin((1 - t) * angle) / std::sin(angle), std::sin(t * angle) / std::sin(angle)};
}

float Merge::least_magnitude(const Weights& model, const std::string& name, int64_t kept) {
  const int64_t numel = model.numel(name);
  const auto for_each = [&](const std::function<void(uint32_t bits)>& use) {
    for (int64_t at = 0; at < numel; at += kElementsAtOnce) {
      const int64_t count = std::min(kElementsAtOnce, numel - at);
      at::Tensor difference = read(model, name, at, count, 1);
      difference.sub_(read(*base_, name, at, count, 0));
      const double* values = difference.const_data_ptr<double>();
      for (int64_t i = 0; i < count; ++i) use(bits_of(values[i]));
    }
  };
  // Magnitudes are ordered as their bits: first the upper halves, then the lower halves of those that matter.
  Histogram upper(1 << 16), lower(1 << 16);
  for_each([&](uint32_t bits) { upper.add(bits >> 16); });
  const auto [high, above] = upper.from_top(kept);
  for_each([&, high = high](uint32_t bits) {
    if (bits >> 16 == high) lower.add(bits & 0xFFFF);
  });
  const uint32_t bits = high << 16 | lower.from_top(kept - above).first;
  float magnitude = 0;
  std::memcpy(&magnitude, &bits, sizeof(magnitude));
  return magnitude;
}

at::Tensor Merge::of_differences(const std::string& name, int64_t begin, int64_t count) {
  const at::Tensor base = read(*base_, name, begin, count, 0);
  const bool elects = options_.method == MergeMethod::kTies;
  at::Tensor sum = memory_[1].narrow(0, 0, count).zero_(), divisor = memory_[2].narrow(0, 0, count).zero_();
  std::vector<at::Tensor> differences;
  for (size_t i = 0; i < models_.size(); ++i) {
    at::Tensor difference = read(models_[i], name, begin, count, 3 + i).sub_(base);
    if (least_[i] > 0) {
      difference.masked_fill_(difference.abs().to(at::kFloat).lt(least_[i]), 0);
    }
    differences.push_back(difference.mul_(weight(i)));
    sum.add_(difference);
    if (!elects) divisor.add_(weight(i));
  }
  if (elects) {
    const at::Tensor is_positive = sum.ge(0);
    sum.zero_();
    for (size_t i = 0; i < differences.size(); ++i) {
      const at::Tensor& difference = differences[i];
      const at::Tensor agrees = at::where(is_positive, difference.gt(0), difference.lt(0));
      sum.add_(difference.mul_(agrees));
      divisor.add_(agrees, weight(i));
    }
  }
  if (options_.normalize.value_or(elects)) {
    sum.div_(divisor.masked_fill_(divisor.abs().lt(kLeastNorm), 1));
  }
  return sum.mul_(options_.lambda.value_or(1)).add_(base);
}

}  // namespace fsdp::checkpoint
