#include "tools/report/noise.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <numeric>

#include "base/util/error.h"

namespace fsdp::report {
namespace {

constexpr size_t kMostBatches = 10;
/// Largest correlation of neighbouring batches that is corrected for. Ten batches cannot show more.
constexpr double kMostCorrelation = 0.8;

/// Quantile of Student's distribution that 99 % of its absolute values do not exceed.
double student_quantile(double degrees) {
  constexpr std::array<double, 19> kQuantiles = {0,     63.66, 9.925, 5.841, 4.604, 4.032, 3.707,
                                                 3.499, 3.355, 3.250, 3.169, 3.106, 3.055, 3.012,
                                                 2.977, 2.947, 2.921, 2.898, 2.878};
  const double whole = std::clamp(std::floor(degrees), 1.0, static_cast<double>(kQuantiles.size() - 1));
  return kQuantiles[static_cast<size_t>(whole)];
}

double mean_of_values(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

/// The mean of batches, its squared error and the degrees of freedom of the error.
struct BatchMean {
  double mean = 0, squared_error = 0, degrees = 0;
};

std::optional<BatchMean> mean_of_batches(const std::vector<double>& values,
                                         const std::function<double(const std::vector<double>&)>& summary) {
  const size_t batches = std::min(kMostBatches, values.size());
  if (batches < static_cast<size_t>(kLeastValues)) return std::nullopt;
  std::vector<double> summaries;
  for (size_t i = 0; i < batches; ++i) {
    const auto at = [&](size_t batch) {
      return values.begin() + static_cast<std::ptrdiff_t>(batch * values.size() / batches);
    };
    summaries.push_back(summary({at(i), at(i + 1)}));
  }
  const double mean = mean_of_values(summaries), count = static_cast<double>(batches);
  double squares = 0, products = 0;
  for (size_t i = 0; i < batches; ++i) {
    squares += (summaries[i] - mean) * (summaries[i] - mean);
    if (i > 0) products += (summaries[i] - mean) * (summaries[i - 1] - mean);
  }
  // The correlation of a short series is estimated too low by about one over its length.
  const double correlation =
      squares > 0 ? std::clamp(products / squares + 1 / count, 0.0, kMostCorrelation) : 0;
  const double squared_error = squares / (count - 1) / count * (1 + correlation) / (1 - correlation);
  if (!std::isfinite(mean) || !std::isfinite(squared_error)) return std::nullopt;
  return BatchMean{mean, squared_error, count - 1};
}

double median_of_logarithms(const std::vector<double>& values) {
  return std::log(quartiles_of(values).median);
}

}  // namespace

std::optional<NoisyMean> mean_under_noise(const std::vector<double>& values) {
  const auto found = mean_of_batches(values, mean_of_values);
  if (!found) return std::nullopt;
  const double error = std::sqrt(found->squared_error);
  return NoisyMean{found->mean, error, student_quantile(found->degrees) * error};
}

std::optional<NoisyMean> log_ratio_under_noise(const std::vector<double>& first,
                                               const std::vector<double>& second) {
  const auto is_positive = [](double value) { return value > 0 && std::isfinite(value); };
  if (!std::all_of(first.begin(), first.end(), is_positive)) return std::nullopt;
  if (!std::all_of(second.begin(), second.end(), is_positive)) return std::nullopt;
  const auto a = mean_of_batches(first, median_of_logarithms),
             b = mean_of_batches(second, median_of_logarithms);
  if (!a || !b) return std::nullopt;
  const double squares = a->squared_error + b->squared_error, error = std::sqrt(squares);
  // Welch's degrees of freedom of a difference of means with different errors.
  const double parts =
      a->squared_error * a->squared_error / a->degrees + b->squared_error * b->squared_error / b->degrees;
  const double degrees = parts > 0 ? squares * squares / parts : a->degrees + b->degrees;
  return NoisyMean{b->mean - a->mean, error, student_quantile(degrees) * error};
}

Quartiles quartiles_of(std::vector<double> values) {
  FSDP_CHECK(!values.empty());
  std::sort(values.begin(), values.end());
  const auto at = [&](double share) {
    const double place = share * static_cast<double>(values.size() - 1);
    const auto below = static_cast<size_t>(place);
    const size_t above = std::min(below + 1, values.size() - 1);
    return values[below] + (place - std::floor(place)) * (values[above] - values[below]);
  };
  return {at(0.25), at(0.5), at(0.75)};
}

}  // namespace fsdp::report
