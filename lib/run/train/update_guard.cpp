#include "run/train/update_guard.h"

#include <cmath>

#include "base/util/error.h"
#include "base/util/text.h"

namespace fsdp::train {
namespace {

/// Returns the standard deviations above the mean; 0 if all values are the same.
struct Spike {
  double mean = 0, zscore = 0;
};

Spike spike(const std::deque<double>& values, double value) {
  const auto count = static_cast<double>(values.size());
  double mean = 0, squares = 0;
  for (double each : values) mean += each / count;
  for (double each : values) squares += (each - mean) * (each - mean) / count;
  return {.mean = mean, .zscore = squares > 0 ? (value - mean) / std::sqrt(squares) : 0};
}

void keep(std::deque<double>& values, double value, size_t window) {
  values.push_back(value);
  while (values.size() > window) values.pop_front();
}

}  // namespace

UpdateGuard::UpdateGuard(const config::TrainingOptions& options)
    : skip_nonfinite_(options.skip_nonfinite),
      zscore_(options.skip_zscore),
      window_(static_cast<size_t>(options.skip_window)),
      max_skipped_steps_(options.max_skipped_steps) {}

std::string UpdateGuard::outlier(double loss, double grad_norm) const {
  if (zscore_ == 0) return {};
  struct Number {
    const char* name;
    const std::deque<double>& before;
    double value;
  };
  for (const Number& number :
       {Number{"loss", losses_, loss}, Number{"gradient norm", grad_norms_, grad_norm}}) {
    if (number.before.size() < window_) return {};
    const Spike found = spike(number.before, number.value);
    if (found.zscore <= zscore_) continue;
    return concat("its ", number.name, " ", number.value, " is ", util::fixed(found.zscore, 1),
                  " standard deviations above the mean ", found.mean, " of ", window_, " steps");
  }
  return {};
}

void UpdateGuard::accept(double loss, double grad_norm) {
  skipped_in_a_row_ = 0;
  if (zscore_ == 0) return;
  keep(losses_, loss, window_);
  keep(grad_norms_, grad_norm, window_);
}

bool UpdateGuard::skip() {
  ++skipped_;
  return ++skipped_in_a_row_ <= max_skipped_steps_;
}

nlohmann::json UpdateGuard::state() const {
  return {{"skipped", skipped_},
          {"skipped_in_a_row", skipped_in_a_row_},
          {"losses", losses_},
          {"grad_norms", grad_norms_}};
}

void UpdateGuard::set_state(const nlohmann::json& state) {
  skipped_ = state.at("skipped").get<int64_t>();
  skipped_in_a_row_ = state.at("skipped_in_a_row").get<int64_t>();
  losses_.clear();
  grad_norms_.clear();
  for (double loss : state.at("losses").get<std::vector<double>>()) keep(losses_, loss, window_);
  for (double norm : state.at("grad_norms").get<std::vector<double>>()) keep(grad_norms_, norm, window_);
}

}  // namespace fsdp::train
