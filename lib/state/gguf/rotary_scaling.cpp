#include "state/gguf/rotary_scaling.h"

#include <algorithm>
#include <cmath>

#include "model/families/families.h"
#include "model/families/rotary_scaling.h"

namespace fsdp::gguf {
using nlohmann::json;

std::vector<DivisorTensor> divisor_tensors(const nn::ModelOptions& options) {
  const auto floats = [](const std::vector<double>& values) {
    return std::vector<float>(values.begin(), values.end());
  };
  if (options.rope_type == nn::RopeType::kLlama3) return {{kRopeFrequencies, frequency_divisors(options)}};
  if (options.rope_type != nn::RopeType::kLongrope) return {};
  return {{kLongFactors, floats(options.rope_long_factor)},
          {kShortFactors, floats(options.rope_short_factor)}};
}

bool is_divisor_tensor(std::string_view name) {
  return name == kRopeFrequencies || name == kShortFactors || name == kLongFactors;
}

double own_attention_factor(nn::RopeType type, double factor) {
  return type == nn::RopeType::kYarn ? 1 + 0.1 * std::log(factor) : 1;
}

void describe_scaling(const nn::ModelOptions& options, const std::string& prefix, Metadata& metadata) {
  const nn::RopeType type = options.rope_type.value();
  const auto add = [&](const char* key, Value value) {
    metadata.emplace_back(concat(prefix, "rope.scaling.", key), std::move(value));
  };
  if (type == nn::RopeType::kLinear || type == nn::RopeType::kYarn) {
    add("type", std::string(options.rope_type.name()));
    add("factor", static_cast<float>(options.rope_factor));
  }
  if (type != nn::RopeType::kYarn && type != nn::RopeType::kLongrope) return;
  add("original_context_length", static_cast<uint32_t>(options.rope_original_length));
  const double factor = nn::rope_attention_factor(options) / own_attention_factor(type, options.rope_factor);
  if (type == nn::RopeType::kLongrope || std::fabs(factor - 1) > 1e-6) {
    add("attn_factor", static_cast<float>(factor));
  }
}

std::vector<float> frequency_divisors(const nn::ModelOptions& options) {
  const int64_t width = nn::head_width(options);
  const double low = options.rope_low_freq_factor, high = options.rope_high_freq_factor;
  std::vector<float> divisors;
  for (int64_t i = 0; i < width; i += 2) {
    const double frequency =
        std::pow(options.rope_theta, -static_cast<double>(i) / static_cast<double>(width));
    const double turns = frequency * static_cast<double>(options.rope_original_length) / (2 * M_PI);
    const double share = std::clamp((turns - low) / (high - low), 0.0, 1.0);
    divisors.push_back(static_cast<float>(1 / ((1 - share) / options.rope_factor + share)));
  }
  return divisors;
}

bool find_scaling(const std::vector<float>& divisors, double theta, json& scaling) {
  if (divisors.empty()) return false;
  nn::ModelOptions options;
  options.rope_type = nn::RopeType::kLlama3;
  options.rope_theta = theta;
  options.head_dim = 2 * static_cast<int64_t>(divisors.size());
  options.rope_factor = divisors.back();  // of the slowest
  const auto fits = [&](double high, double original) {
    if (!(high > 1 && high < 1e6 && original >= 1 && original < 1e7)) return false;
    options.rope_low_freq_factor = 1;
    options.rope_high_freq_factor = high;
    options.rope_original_length = std::llround(original);
    const std::vector<float> expected = frequency_divisors(options);
    return std::equal(divisors.begin(), divisors.end(), expected.begin(),
                      [](float a, float b) { return std::fabs(a - b) <= 1e-4F * std::fabs(b); });
  };
  // Between the two thresholds, the share is a linear function of the frequency: slope * f - offset. A
  // multiple of both thresholds and of the length has the same, so that the lower threshold may be 1.
  struct Point {
    double frequency, share;
  };
  std::vector<Point> between;
  for (size_t i = 0; i < divisors.size(); ++i) {
    const double slow = 1 / options.rope_factor, share = (1 / divisors[i] - slow) / (1 - slow);
    if (!(share > 1e-4 && share < 1 - 1e-4)) continue;
    between.push_back(
        {std::pow(theta, -static_cast<double>(i) / static_cast<double>(divisors.size())), share});
  }
  const auto original_of = [](double slope, double high) { return slope * 2 * M_PI * (high - 1); };
  constexpr double kUsualHigh = 4, kUsualLength = 8192;
  bool found = false;
  if (between.size() >= 2) {
    const Point& first = between.front();
    const Point& last = between.back();
    const double slope = (first.share - last.share) / (first.frequency - last.frequency);
    const double high = 1 + 1 / (slope * first.frequency - first.share);
    const double rounded = std::round(high * 1000) / 1000;
    found = fits(rounded, original_of(slope, rounded)) || fits(high, original_of(slope, high));
  } else if (between.size() == 1) {
    const double slope = (between[0].share + 1 / (kUsualHigh - 1)) / between[0].frequency;
    found = fits(kUsualHigh, original_of(slope, kUsualHigh));
  } else {
    found = fits(kUsualHigh, kUsualLength);
  }
  if (!found) return false;
  scaling = {{"rope_type", "llama3"},
             {"factor", options.rope_factor},
             {"low_freq_factor", options.rope_low_freq_factor},
             {"high_freq_factor", options.rope_high_freq_factor},
             {"original_max_position_embeddings", options.rope_original_length}};
  return true;
}

}  // namespace fsdp::gguf
