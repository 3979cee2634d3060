#include "model/families/rotary_scaling.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "model/families/families.h"

namespace fsdp::nn {

bool RopeOption::is_of(RopeType type) const { return std::ranges::count(types, type) > 0; }

const std::vector<RopeOption>& rope_options() {
  using enum RopeType;
  static const std::vector<RopeOption> options = {
      {"rope_factor", "factor", {kLinear, kLlama3, kYarn, kLongrope, kDynamic}},
      {"rope_low_freq_factor", "low_freq_factor", {kLlama3}},
      {"rope_high_freq_factor", "high_freq_factor", {kLlama3}},
      {"rope_original_length", "original_max_position_embeddings", {kLlama3, kYarn, kLongrope}},
      {"rope_attention_factor", "attention_factor", {kYarn, kLongrope}},
      {"rope_beta_fast", "beta_fast", {kYarn}},
      {"rope_beta_slow", "beta_slow", {kYarn}},
      {"rope_mscale", "mscale", {kYarn}},
      {"rope_mscale_all_dim", "mscale_all_dim", {kYarn}},
      {"rope_truncate", "truncate", {kYarn}},
      {"rope_short_factor", "short_factor", {kLongrope}},
      {"rope_long_factor", "long_factor", {kLongrope}}};
  return options;
}

bool has_rope_type(const ModelOptions& options, RopeType type) {
  const Family& family = family_of(options);
  return family.has("rope_type") && std::ranges::all_of(rope_options(), [&](const RopeOption& each) {
           return !each.is_of(type) || family.has(each.option);
         });
}

namespace {

/// A list of longrope: a positive number for each frequency.
std::optional<RopeProblem> find_list_problem(const ModelOptions& options, std::string_view option,
                                             const std::vector<double>& list) {
  const int64_t count = rotary_width(options) / 2;
  if (std::ssize(list) != count) {
    return RopeProblem{option, concat("must have a number for each of the ", count,
                                      " frequencies of a head with rope_type longrope, but has ", list.size(),
                                      "; take the list of the model's config.json")};
  }
  const auto wrong = std::ranges::find_if_not(
      list, [](double value) { return value > 1e-30 && value < 1e30; });  // in single precision too
  if (wrong == list.end()) return std::nullopt;
  return RopeProblem{option, concat("must have numbers above 0, but has ", *wrong, "; correct it")};
}

}  // namespace

std::optional<RopeProblem> find_rope_problem(const ModelOptions& options) {
  using enum RopeType;
  const RopeType type = options.rope_type.value();
  if (type == kDefault) return std::nullopt;
  if (!has_rope_type(options, type)) {
    return RopeProblem{"rope_type",
                       concat("must be a type that models of ", options.architecture,
                              " have in transformers, but is ", options.rope_type.name(), "; leave it out")};
  }
  if (!(options.rope_factor > 0)) {
    return RopeProblem{"rope_factor",
                       concat("must be above 0, but is ", options.rope_factor, "; most are from 2 to 40")};
  }
  if (type == kLlama3 && !(options.rope_low_freq_factor < options.rope_high_freq_factor)) {
    return RopeProblem{"rope_low_freq_factor",
                       concat("must be less than rope_high_freq_factor = ", options.rope_high_freq_factor,
                              ", but is ", options.rope_low_freq_factor, "; Llama 3 has 1 and 4")};
  }
  if (options.rope_original_length < 1) {
    return RopeProblem{"rope_original_length",
                       concat("must be at least 1, but is ", options.rope_original_length, "; give it")};
  }
  // Logarithms of these are divisors.
  if (type == kLongrope && options.rope_attention_factor == 0 && options.rope_original_length < 2) {
    return RopeProblem{"rope_original_length",
                       "must be at least 2 with rope_type longrope, but is 1; give it"};
  }
  if (type == kYarn && !(options.rope_theta > 1)) {
    return RopeProblem{"rope_theta", concat("must be above 1 with rope_type yarn, but is ",
                                            options.rope_theta, "; most models have 10000 or more")};
  }
  if (type == kDynamic && (options.rope_factor < 1 || rotary_width(options) <= 2)) {
    return RopeProblem{"rope_factor",
                       concat("must be at least 1, in heads that rotate more than 2 elements, with rope_type "
                              "dynamic, but is ",
                              options.rope_factor, " in heads that rotate ", rotary_width(options),
                              "; give another factor or type")};
  }
  if (type == kYarn && !(options.rope_beta_slow <= options.rope_beta_fast)) {
    return RopeProblem{"rope_beta_slow", concat("must be at most rope_beta_fast = ", options.rope_beta_fast,
                                                ", but is ", options.rope_beta_slow, "; YaRN has 1 and 32")};
  }
  if (type != kLongrope) return std::nullopt;
  const auto problem = find_list_problem(options, "rope_short_factor", options.rope_short_factor);
  return problem ? problem : find_list_problem(options, "rope_long_factor", options.rope_long_factor);
}

double rope_attention_factor(const ModelOptions& options) {
  const RopeType type = options.rope_type.value();
  const double factor = options.rope_factor;
  if (type != RopeType::kYarn && type != RopeType::kLongrope) return 1;
  if (options.rope_attention_factor > 0) return options.rope_attention_factor;
  if (factor <= 1) return 1;
  if (type == RopeType::kLongrope) {
    return std::sqrt(1 + std::log(factor) / std::log(static_cast<double>(options.rope_original_length)));
  }
  const auto scale = [&](double multiplier) { return 0.1 * multiplier * std::log(factor) + 1; };
  const bool has_scales = options.rope_mscale > 0 && options.rope_mscale_all_dim > 0;
  return has_scales ? scale(options.rope_mscale) / scale(options.rope_mscale_all_dim) : scale(1);
}

int64_t rope_length(const ModelOptions& options, int64_t length) {
  if (options.rope_type == RopeType::kLongrope) {
    return length > options.rope_original_length ? options.rope_original_length + 1 : 0;
  }
  if (options.rope_type != RopeType::kDynamic) return 0;
  return length > options.max_position_embeddings ? length : 0;
}

YarnBounds yarn_bounds(const ModelOptions& options) {
  const auto width = static_cast<double>(rotary_width(options));
  const auto index_of = [&](double turns) {
    const double original = static_cast<double>(options.rope_original_length);
    return width * std::log(original / (turns * 2 * std::numbers::pi)) / (2 * std::log(options.rope_theta));
  };
  double low = index_of(options.rope_beta_fast), high = index_of(options.rope_beta_slow);
  if (options.rope_truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, width - 1);
  return {low, low == high ? high + 0.001 : high};  // no division by 0
}

}  // namespace fsdp::nn
