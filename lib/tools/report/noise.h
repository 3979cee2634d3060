#pragma once

// Means of measurements that follow each other in time, with errors that take their correlation into account.

#include <optional>
#include <vector>

namespace fsdp::report {

/// A mean and its range of 99 % confidence.
struct NoisyMean {
  double mean = 0, standard_error = 0;
  double half_width = 0;  ///< the range is mean - half_width to mean + half_width

  /// Whether the mean differs from 0 beyond noise.
  bool is_beyond_noise() const { return mean - half_width > 0 || mean + half_width < 0; }
};

/// Least number of values of which an error can be estimated.
inline constexpr int kLeastValues = 5;

/// The mean of values in the order of time. Neighbouring values may be correlated: the error is that of the
/// means of up to ten batches of consecutive values, increased by the correlation that is left between
/// neighbouring batches. Nothing for fewer than kLeastValues values, and for a mean or an error that is not
/// finite.
std::optional<NoisyMean> mean_under_noise(const std::vector<double>& values);

/// The mean of `second` less that of `first`, each the logarithm of a positive measurement, as
/// mean_under_noise(), but of the medians of batches, so that single slow steps do not count. The two series
/// are independent. Nothing if a value is not positive.
std::optional<NoisyMean> log_ratio_under_noise(const std::vector<double>& first,
                                               const std::vector<double>& second);

struct Quartiles {
  double lower = 0, median = 0, upper = 0;
};

/// Quartiles by linear interpolation. Requires: there is a value.
Quartiles quartiles_of(std::vector<double> values);

}  // namespace fsdp::report
