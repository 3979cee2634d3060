#include "tools/report/compare.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "base/util/error.h"
#include "base/util/text.h"
#include "setup/config/load.h"
#include "setup/config/print.h"
#include "tools/report/compare_notes.h"

namespace fsdp::report {
namespace {

using Points = std::vector<CurvePoint>;

/// A step or count of a file, whose numbers may have any size.
int64_t whole(double number) { return static_cast<int64_t>(std::clamp(std::round(number), 0.0, 9e15)); }

bool has_lower_value(const CurvePoint& a, const CurvePoint& b) { return a.y < b.y; }

/// The last point of each step: a run that was killed and resumed may have logged a step twice.
Points last_of_each_step(const Points& points) {
  Points last;
  for (const CurvePoint& point : points) {
    if (!last.empty() && last.back().x == point.x) last.pop_back();
    last.push_back(point);
  }
  return last;
}

LossAtStep loss_of(const CurvePoint& point) { return {whole(point.x), point.y}; }

std::optional<CurvePoint> last_point(const Points& points) {
  return points.empty() ? std::nullopt : std::optional(points.back());
}

/// The values of all lines but the first, whose steps include the warm-up of the process.
std::vector<double> values_after_the_first(const Points& points) {
  std::vector<double> values;
  for (size_t i = 1; i < points.size(); ++i) values.push_back(points[i].y);
  return values;
}

std::optional<Quartiles> quartiles_of_lines(const RunRecord& run, const char* name) {
  const std::vector<double> values = values_after_the_first(last_of_each_step(run.values(name)));
  return values.empty() ? std::nullopt : std::optional(quartiles_of(values));
}

std::optional<double> peak_of(const RunRecord& run, const char* name) {
  const Points& points = run.values(name);
  if (points.empty()) return std::nullopt;
  return std::max_element(points.begin(), points.end(), has_lower_value)->y;
}

RunSummary summary_of(const RunRecord& run) {
  if (run.series.empty() && run.nonfinite_losses == 0 && run.skipped_lines > 0) {
    fail(ErrorKind::kData, (run.folder / "metrics.jsonl").string(),
         " must have lines that fsdp-train wrote, but none of its ", run.skipped_lines,
         " lines can be read; give the run.output_dir of a run");
  }
  RunSummary summary{.folder = util::printable(run.folder.string())};
  for (const char* name : {"loss", "tokens", "validation_loss"}) {
    if (const auto last = last_point(run.values(name))) {
      summary.last_step = std::max(summary.last_step, whole(last->x));
    }
  }
  if (const auto last = last_point(run.values("loss"))) summary.training_loss = loss_of(*last);
  const Points validations = last_of_each_step(run.values("validation_loss"));
  if (!validations.empty()) {
    summary.validation_loss = loss_of(validations.back());
    summary.best_validation_loss =
        loss_of(*std::min_element(validations.begin(), validations.end(), has_lower_value));
  }
  summary.tokens_per_second = quartiles_of_lines(run, "tokens_per_second");
  summary.step_seconds = quartiles_of_lines(run, "step_seconds");
  if (const auto tokens = last_point(run.values("tokens")); tokens && tokens->x > 0) {
    summary.tokens_per_step = tokens->y / tokens->x;
  }
  summary.peak_memory_bytes = peak_of(run, "peak_memory_bytes");
  summary.gpu_peak_memory_bytes = peak_of(run, "gpu_peak_allocated_bytes");
  summary.nonfinite_losses = run.nonfinite_losses;
  if (const auto skipped = last_point(run.values("skipped_steps"))) {
    summary.skipped_steps = whole(skipped->y);
  }
  summary.damaged_lines = run.skipped_lines;
  return summary;
}

/// The points of one run at common steps.
struct PairedPoints {
  std::vector<double> steps, first, second;
  bool same_bits = true;
};

/// The mean of the lines of (begin, end], each weighted by the steps that it covers. Moves `at` behind them.
double mean_until(const Points& points, size_t& at, double begin, double end) {
  double sum = 0, weights = 0, covered = begin;
  for (; at < points.size() && points[at].x <= end; ++at) {
    const double weight = std::max(points[at].x - covered, 1.0);
    sum += weight * points[at].y;
    weights += weight;
    covered = points[at].x;
  }
  return sum / weights;
}

/// Pairs the lines of common steps. A line of a loss has the mean of the steps since the line before, so that
/// runs with different logging.interval_steps are compared over the same steps if `lines_are_means`.
PairedPoints paired(const Points& first, const Points& second, bool lines_are_means) {
  PairedPoints pairs;
  size_t i = 0, j = 0, first_done = 0, second_done = 0;
  double before = 0;
  while (i < first.size() && j < second.size()) {
    if (first[i].x != second[j].x) {
      ++(first[i].x < second[j].x ? i : j);
      continue;
    }
    pairs.same_bits = pairs.same_bits && first[i].y == second[j].y;
    pairs.steps.push_back(first[i].x);
    pairs.first.push_back(lines_are_means ? mean_until(first, first_done, before, first[i].x) : first[i].y);
    pairs.second.push_back(lines_are_means ? mean_until(second, second_done, before, second[j].x)
                                           : second[j].y);
    before = first[i].x;
    ++i, ++j;
  }
  return pairs;
}

double mean_from(const std::vector<double>& values, size_t begin) {
  double sum = 0;
  for (size_t i = begin; i < values.size(); ++i) sum += values[i];
  return sum / static_cast<double>(values.size() - begin);
}

ComparisonVerdict verdict_of(const std::optional<NoisyMean>& difference, bool lower_is_better) {
  if (!difference) return ComparisonVerdict::kUnknown;
  if (!difference->is_beyond_noise()) return ComparisonVerdict::kNoDifference;
  return (difference->mean < 0) == lower_is_better ? ComparisonVerdict::kBetter : ComparisonVerdict::kWorse;
}

LossComparison compare_losses(const RunRecord& first, const RunRecord& second, const char* name,
                              bool lines_are_means) {
  const PairedPoints pairs =
      paired(last_of_each_step(first.values(name)), last_of_each_step(second.values(name)), lines_are_means);
  LossComparison result{.common_steps = static_cast<int64_t>(pairs.steps.size())};
  if (pairs.steps.empty()) return result;
  const size_t begin = pairs.steps.size() / 2;
  result.compared_steps = static_cast<int64_t>(pairs.steps.size() - begin);
  result.first_compared_step = whole(pairs.steps[begin]);
  result.last_compared_step = whole(pairs.steps.back());
  result.means = {mean_from(pairs.first, begin), mean_from(pairs.second, begin)};
  std::vector<double> differences;
  for (size_t i = 0; i < pairs.steps.size(); ++i) differences.push_back(pairs.second[i] - pairs.first[i]);
  result.mean_difference_of_all = mean_from(differences, 0);
  differences.erase(differences.begin(), differences.begin() + static_cast<std::ptrdiff_t>(begin));
  result.difference = mean_under_noise(differences);
  result.verdict = pairs.same_bits ? ComparisonVerdict::kSameBits
                                   : verdict_of(result.difference, /*lower_is_better=*/true);
  return result;
}

bool norms_have_the_same_bits(const RunRecord& first, const RunRecord& second) {
  return paired(last_of_each_step(first.values("grad_norm")), last_of_each_step(second.values("grad_norm")),
                /*lines_are_means=*/false)
      .same_bits;
}

SpeedComparison compare_speeds(const RunRecord& first, const RunRecord& second) {
  const auto values_of = [](const RunRecord& run, const char* name) {
    return values_after_the_first(last_of_each_step(run.values(name)));
  };
  const auto faster =
      log_ratio_under_noise(values_of(first, "tokens_per_second"), values_of(second, "tokens_per_second"));
  SpeedComparison result{.verdict = verdict_of(faster, /*lower_is_better=*/false)};
  if (!faster) return result;
  result.ratio = std::exp(faster->mean);
  result.low = std::exp(faster->mean - faster->half_width);
  result.high = std::exp(faster->mean + faster->half_width);
  return result;
}

using NamedTexts = std::vector<std::pair<std::string, std::string>>;

/// The config's keys and values; nothing if it is of another version, needs a plug-in, or is not there.
std::optional<NamedTexts> config_of(const RunRecord& run, RunSummary& summary) {
  try {
    const config::Config config = config::load_resolved_config(run.folder / "config.toml");
    summary.configured_steps = config.training.steps;
    return config::key_texts(config);
  } catch (const util::Error&) {
    return std::nullopt;
  }
}

std::vector<DifferingValue> differing(const NamedTexts& first, const NamedTexts& second,
                                      const std::set<std::string>& ignored) {
  std::map<std::string, std::array<std::string, 2>> values;
  for (const auto& [name, value] : first) values[name][0] = value;
  for (const auto& [name, value] : second) values[name][1] = value;
  std::vector<DifferingValue> found;
  for (const auto& [name, both] : values) {
    if (both[0] != both[1] && !ignored.contains(name)) found.push_back({name, both});
  }
  return found;
}

}  // namespace

Comparison compare_runs(const RunRecord& first, const RunRecord& second) {
  Comparison comparison;
  comparison.runs = {summary_of(first), summary_of(second)};
  const auto first_config = config_of(first, comparison.runs[0]),
             second_config = config_of(second, comparison.runs[1]);
  if (first_config && second_config) {
    comparison.config = differing(*first_config, *second_config, {"run.output_dir", "run.name"});
  }
  comparison.environment =
      differing(first.environment, second.environment, {"started", "peak_tflops_a_rank"});
  comparison.training_loss = compare_losses(first, second, "loss", /*lines_are_means=*/true);
  if (comparison.training_loss.verdict == ComparisonVerdict::kSameBits &&
      !norms_have_the_same_bits(first, second)) {
    comparison.training_loss.verdict = ComparisonVerdict::kNoDifference;
  }
  comparison.validation_loss = compare_losses(first, second, "validation_loss", /*lines_are_means=*/false);
  comparison.speed = compare_speeds(first, second);
  add_notes(comparison, !first.environment.empty() && !second.environment.empty());
  return comparison;
}

}  // namespace fsdp::report
