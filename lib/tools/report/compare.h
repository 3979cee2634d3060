#pragma once

// fsdp-train compare: the results of two runs, and which of their differences are larger than noise. All
// differences are those of the second run from the first.

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/util/enum_names.h"
#include "tools/report/noise.h"
#include "tools/report/run_record.h"

namespace fsdp::report {

/// Verdict on the second run.
enum class ComparisonVerdict { kBetter, kWorse, kNoDifference, kSameBits, kUnknown };
constexpr auto enum_names(ComparisonVerdict) {
  using enum ComparisonVerdict;
  return std::to_array<util::EnumName<ComparisonVerdict>>({{kBetter, "better"},
                                                           {kWorse, "worse"},
                                                           {kNoDifference, "no_difference"},
                                                           {kSameBits, "same_bits"},
                                                           {kUnknown, "unknown"}});
}

struct LossAtStep {
  int64_t step = 0;
  double loss = 0;
};

/// The numbers of one of the runs.
struct RunSummary {
  std::string folder;
  int64_t last_step = 0;  ///< the last logged step; 0: none
  std::optional<int64_t> configured_steps = std::nullopt;
  std::optional<LossAtStep> training_loss = std::nullopt;    ///< loss of the last line
  std::optional<LossAtStep> validation_loss = std::nullopt;  ///< loss of the last validation
  std::optional<LossAtStep> best_validation_loss = std::nullopt;
  std::optional<Quartiles> tokens_per_second = std::nullopt, step_seconds = std::nullopt;
  std::optional<double> tokens_per_step = std::nullopt, peak_memory_bytes = std::nullopt,
                        gpu_peak_memory_bytes = std::nullopt;
  int64_t nonfinite_losses = 0;  ///< lines without a finite loss
  int64_t skipped_steps = 0;     ///< steps without an update
  int64_t damaged_lines = 0;     ///< lines that were not written by fsdp-train, or are torn
};

/// A loss of both runs at their common steps. The verdict and the means are those of the later half of these
/// steps, because an early lead often vanishes.
struct LossComparison {
  int64_t common_steps = 0;  ///< number of steps that both runs have logged
  int64_t compared_steps = 0;
  int64_t first_compared_step = 0, last_compared_step = 0;
  std::optional<std::array<double, 2>> means = std::nullopt;
  std::optional<double> mean_difference_of_all = std::nullopt;  ///< over all common steps
  std::optional<NoisyMean> difference = std::nullopt;
  ComparisonVerdict verdict = ComparisonVerdict::kUnknown;
};

/// The ratio of the runs' speeds, with its range of 99 % confidence.
struct SpeedComparison {
  std::optional<double> ratio = std::nullopt;
  double low = 0, high = 0;
  ComparisonVerdict verdict = ComparisonVerdict::kUnknown;
};

/// A name whose values differ.
struct DifferingValue {
  std::string name;
  std::array<std::string, 2> values;
};

/// A reason to doubt the comparison.
struct ComparisonNote {
  std::string code;  ///< such as "seed"; docs/schemas/fsdp-train-compare.json lists all
  std::string text;
};

struct Comparison {
  std::array<RunSummary, 2> runs;
  std::optional<std::vector<DifferingValue>> config;  ///< nothing if a config cannot be read
  std::vector<DifferingValue> environment;
  LossComparison training_loss, validation_loss;
  SpeedComparison speed;
  std::vector<ComparisonNote> notes;
};

/// Compares two runs. Throws Error(kData) for a run whose metrics.jsonl has lines, but none that fsdp-train
/// wrote.
Comparison compare_runs(const RunRecord& first, const RunRecord& second);

/// The comparison as tables for people.
std::string comparison_text(const Comparison& comparison);
/// The comparison as one JSON object (docs/schemas/fsdp-train-compare.json).
std::string comparison_json(const Comparison& comparison);

}  // namespace fsdp::report
