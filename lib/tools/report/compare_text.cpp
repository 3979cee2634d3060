// The comparison as text and as JSON.

#include <cmath>
#include <functional>

#include "base/util/error.h"
#include "base/util/text.h"
#include "tools/report/axis.h"
#include "tools/report/compare.h"

namespace fsdp::report {
namespace {

using nlohmann::ordered_json;
using util::printed;

constexpr const char* kNone = "-";

const char* words_of(ComparisonVerdict verdict) {
  switch (verdict) {
    case ComparisonVerdict::kBetter:
      return "better";
    case ComparisonVerdict::kWorse:
      return "worse";
    case ComparisonVerdict::kNoDifference:
      return "no difference beyond noise";
    case ComparisonVerdict::kSameBits:
      return "the same bits";
    case ComparisonVerdict::kUnknown:
      break;
  }
  return "unknown";
}

std::string row(const std::string& name, const std::string& first, const std::string& second,
                const std::string& difference = "", const std::string& verdict = "") {
  std::string text = printed("%-30s %16s %16s   %-20s %s", name.c_str(), first.c_str(), second.c_str(),
                             difference.c_str(), verdict.c_str());
  text.erase(text.find_last_not_of(' ') + 1);
  return text + "\n";
}

template <typename Value>
std::string text_or_none(const std::optional<Value>& value, const std::function<std::string(Value)>& text) {
  return value ? text(*value) : kNone;
}

std::string loss_text(const std::optional<LossAtStep>& last) {
  return text_or_none<LossAtStep>(last, [](const LossAtStep& of) { return util::fixed(of.loss, 4); });
}

std::string step_text(const std::optional<LossAtStep>& last) {
  return text_or_none<LossAtStep>(last, [](const LossAtStep& of) { return concat("step ", of.step); });
}

std::string signed_text(double value) {
  return (value < 0 || std::isnan(value) ? "" : "+") + util::fixed(value, 4);
}

/// The difference of two losses. Empty if one is missing.
std::string difference_text(const std::optional<LossAtStep>& first, const std::optional<LossAtStep>& second) {
  return first && second ? signed_text(second->loss - first->loss) : "";
}

std::string loss_rows(const std::string& name, const LossComparison& loss) {
  if (!loss.means) return "";
  std::string difference = signed_text((*loss.means)[1] - (*loss.means)[0]);
  if (loss.difference) {
    difference =
        concat(signed_text(loss.difference->mean), " +- ", util::fixed(loss.difference->half_width, 4));
  }
  return concat(
      row(name + ", later half", util::fixed((*loss.means)[0], 4), util::fixed((*loss.means)[1], 4),
          difference, words_of(loss.verdict)),
      printed("  mean of %s lines, steps %s to %s\n", util::with_commas(loss.compared_steps).c_str(),
              util::with_commas(loss.first_compared_step).c_str(),
              util::with_commas(loss.last_compared_step).c_str()));
}

std::string percent(double ratio) { return printed("%+.1f%%", 100 * (ratio - 1)); }

std::string speed_rows(const Comparison& comparison) {
  const auto& [first, second] = comparison.runs;
  const auto whole_number = [](const Quartiles& of) {
    return value_text(std::round(of.median), Scale::kNumber);
  };
  const auto range = [](const Quartiles& of) {
    return concat(value_text(std::round(of.lower), Scale::kNumber), " to ",
                  value_text(std::round(of.upper), Scale::kNumber));
  };
  const auto seconds = [](const Quartiles& of) { return concat(util::fixed(of.median, 3), " s"); };
  const SpeedComparison& speed = comparison.speed;
  const std::string ratio = speed.ratio ? printed("%s (%s to %s)", percent(*speed.ratio).c_str(),
                                                  percent(speed.low).c_str(), percent(speed.high).c_str())
                                        : "";
  return concat(
      row("tokens per second, median", text_or_none<Quartiles>(first.tokens_per_second, whole_number),
          text_or_none<Quartiles>(second.tokens_per_second, whole_number), ratio, words_of(speed.verdict)),
      row("  quartiles", text_or_none<Quartiles>(first.tokens_per_second, range),
          text_or_none<Quartiles>(second.tokens_per_second, range)),
      row("seconds per step, median", text_or_none<Quartiles>(first.step_seconds, seconds),
          text_or_none<Quartiles>(second.step_seconds, seconds)));
}

std::string memory_row(const std::string& name, const std::optional<double>& first,
                       const std::optional<double>& second) {
  if (!first && !second) return "";
  const auto bytes = [](double value) { return value_text(value, Scale::kBytes); };
  return row(name, text_or_none<double>(first, bytes), text_or_none<double>(second, bytes),
             first && second && *first > 0 ? percent(*second / *first) : "");
}

std::string table_of(const std::vector<DifferingValue>& values) {
  std::string text;
  for (const DifferingValue& value : values) {
    text += util::printable(concat("  ", value.name, ": ", value.values[0].empty() ? kNone : value.values[0],
                                   " -> ", value.values[1].empty() ? kNone : value.values[1], "\n"));
  }
  return text;
}

ordered_json json_of(const std::optional<LossAtStep>& last) {
  if (!last) return nullptr;
  return {{"step", last->step}, {"loss", last->loss}};
}

ordered_json json_of(const std::optional<Quartiles>& quartiles) {
  if (!quartiles) return nullptr;
  return {{"lower_quartile", quartiles->lower},
          {"median", quartiles->median},
          {"upper_quartile", quartiles->upper}};
}

ordered_json json_of(const std::optional<double>& value) {
  return value ? ordered_json(*value) : ordered_json();
}

ordered_json json_of(const RunSummary& run) {
  return {{"folder", run.folder},
          {"last_step", run.last_step},
          {"configured_steps", run.configured_steps ? ordered_json(*run.configured_steps) : ordered_json()},
          {"training_loss", json_of(run.training_loss)},
          {"validation_loss", json_of(run.validation_loss)},
          {"best_validation_loss", json_of(run.best_validation_loss)},
          {"tokens_per_second", json_of(run.tokens_per_second)},
          {"step_seconds", json_of(run.step_seconds)},
          {"tokens_per_step", json_of(run.tokens_per_step)},
          {"peak_memory_bytes", json_of(run.peak_memory_bytes)},
          {"gpu_peak_memory_bytes", json_of(run.gpu_peak_memory_bytes)},
          {"nonfinite_losses", run.nonfinite_losses},
          {"skipped_steps", run.skipped_steps},
          {"damaged_lines", run.damaged_lines}};
}

ordered_json json_of(const std::vector<DifferingValue>& values) {
  ordered_json list = ordered_json::array();
  for (const DifferingValue& value : values) {
    const auto text = [](const std::string& of) { return of.empty() ? ordered_json() : ordered_json(of); };
    list.push_back(
        {{"name", value.name}, {"first", text(value.values[0])}, {"second", text(value.values[1])}});
  }
  return list;
}

ordered_json json_of(const LossComparison& loss) {
  const auto mean = [&](size_t run) {
    return loss.means ? ordered_json((*loss.means)[run]) : ordered_json();
  };
  const auto of_difference = [&](double NoisyMean::*member) {
    return loss.difference ? ordered_json((*loss.difference).*member) : ordered_json();
  };
  return {{"verdict", util::name_of(loss.verdict)},
          {"common_steps", loss.common_steps},
          {"compared_steps", loss.compared_steps},
          {"first_compared_step", loss.first_compared_step},
          {"last_compared_step", loss.last_compared_step},
          {"first_mean", mean(0)},
          {"second_mean", mean(1)},
          {"mean_difference", of_difference(&NoisyMean::mean)},
          {"standard_error", of_difference(&NoisyMean::standard_error)},
          {"half_width_99", of_difference(&NoisyMean::half_width)},
          {"mean_difference_of_all", json_of(loss.mean_difference_of_all)}};
}

ordered_json json_of(const SpeedComparison& speed) {
  const bool is_known = speed.ratio.has_value();
  return {{"verdict", util::name_of(speed.verdict)},
          {"ratio", json_of(speed.ratio)},
          {"low_99", is_known ? ordered_json(speed.low) : ordered_json()},
          {"high_99", is_known ? ordered_json(speed.high) : ordered_json()}};
}

}  // namespace

std::string comparison_text(const Comparison& comparison) {
  const auto& [first, second] = comparison.runs;
  std::string text = concat("first:  ", first.folder, "\nsecond: ", second.folder, "\n\n",
                            row("", "first", "second", "second - first", "the second is"));
  text += row("training loss, last", loss_text(first.training_loss), loss_text(second.training_loss),
              difference_text(first.training_loss, second.training_loss));
  text += row("", step_text(first.training_loss), step_text(second.training_loss));
  text += loss_rows("training loss", comparison.training_loss);
  if (first.validation_loss || second.validation_loss) {
    text += row("validation loss, last", loss_text(first.validation_loss), loss_text(second.validation_loss),
                difference_text(first.validation_loss, second.validation_loss));
    text += row("validation loss, best", loss_text(first.best_validation_loss),
                loss_text(second.best_validation_loss),
                difference_text(first.best_validation_loss, second.best_validation_loss));
    text += row("", step_text(first.best_validation_loss), step_text(second.best_validation_loss));
    text += loss_rows("validation loss", comparison.validation_loss);
  }
  text += speed_rows(comparison);
  text += memory_row("peak memory of process 0", first.peak_memory_bytes, second.peak_memory_bytes);
  text += memory_row("peak memory of its GPU", first.gpu_peak_memory_bytes, second.gpu_peak_memory_bytes);
  if (comparison.config) {
    text += comparison.config->empty() ? "\nNo key of the config differs.\n"
                                       : "\nKeys that differ:\n" + table_of(*comparison.config);
  }
  if (!comparison.environment.empty())
    text += "\nMachines and programs:\n" + table_of(comparison.environment);
  if (!comparison.notes.empty()) text += "\nNotes:\n";
  for (const ComparisonNote& note : comparison.notes) text += concat("  ", note.text, "\n");
  return text +
         "\n+- is the range of 99 % confidence, with the correlation of neighbouring steps; it does not include\n"
         "the luck of a seed. Repeat both runs with other seeds before small differences decide.\n";
}

std::string comparison_json(const Comparison& comparison) {
  ordered_json notes = ordered_json::array();
  for (const ComparisonNote& note : comparison.notes)
    notes.push_back({{"code", note.code}, {"text", note.text}});
  const ordered_json json = {
      {"runs", {json_of(comparison.runs[0]), json_of(comparison.runs[1])}},
      {"training_loss", json_of(comparison.training_loss)},
      {"validation_loss", json_of(comparison.validation_loss)},
      {"speed", json_of(comparison.speed)},
      {"config_differences", comparison.config ? json_of(*comparison.config) : ordered_json()},
      {"environment_differences", json_of(comparison.environment)},
      {"notes", std::move(notes)}};
  return json.dump(2, ' ', true, ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace fsdp::report
