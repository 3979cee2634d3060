#include "tools/report/compare_notes.h"

#include <cmath>
#include <set>
#include <tuple>

#include "base/util/error.h"
#include "base/util/text.h"

namespace fsdp::report {
namespace {

/// Names of the differing values for which `is_chosen` holds.
template <typename Predicate>
std::vector<std::string> names_where(const std::vector<DifferingValue>& values, const Predicate& is_chosen) {
  std::vector<std::string> names;
  for (const DifferingValue& value : values) {
    if (is_chosen(value.name)) names.push_back(value.name);
  }
  return names;
}

/// Collects the notes of a comparison.
class ComparisonNotes {
 public:
  explicit ComparisonNotes(Comparison& comparison) : comparison_(comparison) {}

  void about_run(size_t index) {
    const RunSummary& run = comparison_.runs[index];
    const std::string who = index == 0 ? "the first run" : "the second run";
    if (run.last_step == 0) add("no_steps", who, " has logged no step");
    if (run.configured_steps && run.last_step < *run.configured_steps) {
      add("unfinished", who, " has logged ", run.last_step, " of the ", *run.configured_steps,
          " steps of its config: it is still running, was stopped, failed, or ended early");
    }
    if (run.nonfinite_losses > 0) {
      add("nonfinite_loss", who, " has ", run.nonfinite_losses,
          " line(s) without a finite loss: steps without targets, or a run that diverges");
    }
    if (run.damaged_lines > 0) {
      add("damaged_lines", run.damaged_lines, " line(s) of metrics.jsonl of ", who, " cannot be read");
    }
  }

  void about_configs() {
    if (!comparison_.config) {
      add("no_config",
          "the config.toml of a run is missing or is of another version or plug-in, so the "
          "configs are not compared");
      return;
    }
    const auto in_data =
        names_where(*comparison_.config, [](const std::string& name) { return name.starts_with("data."); });
    if (!in_data.empty()) {
      add("data", util::name_list(in_data), " differ, so the runs may not have trained on the same samples");
    }
    const auto seeds =
        names_where(*comparison_.config, [](const std::string& name) { return name == "run.seed"; });
    if (!seeds.empty()) {
      add("seed",
          "the seeds differ, so the order of samples and the initial weights do too, and the "
          "difference includes their luck");
    }
  }

  void about_environments(bool has_both) {
    if (!has_both) {
      add("no_environment", "the environment.json of a run is missing, so the machines are not compared");
      return;
    }
    const auto find = [&](const std::set<std::string>& names) {
      return names_where(comparison_.environment,
                         [&](const std::string& name) { return names.contains(name); });
    };
    for (const auto& [code, names, text] :
         {std::tuple{"processes", std::set<std::string>{"ranks", "threads_a_rank", "communication"},
                     "so the speeds are not those of the same division of work"},
          {"hardware",
           {"host", "cpu", "cpu_instructions", "cores", "memory", "peak_tflops_source"},
           "so the speeds are those of different machines"},
          {"version", {"fsdp", "libtorch"}, "so the runs are those of different programs"}}) {
      const auto found = find(names);
      if (!found.empty()) add(code, util::name_list(found), " differ, ", text);
    }
  }

  void about_both() {
    const auto& [first, second] = comparison_.runs;
    constexpr double kSameTokens = 0.01;
    if (first.tokens_per_step && second.tokens_per_step &&
        std::abs(*first.tokens_per_step - *second.tokens_per_step) > kSameTokens * *first.tokens_per_step) {
      add("tokens_per_step", "a step has ", util::fixed(*first.tokens_per_step, 0),
          " tokens in the first run and ", util::fixed(*second.tokens_per_step, 0),
          " in the second, so equal steps are not equal amounts of data");
    }
    if (first.last_step != second.last_step) {
      add("lengths", "the runs end at steps ", first.last_step, " and ", second.last_step,
          "; losses are compared at the steps that both have logged");
    }
    if (comparison_.training_loss.verdict == ComparisonVerdict::kUnknown) {
      add("too_few_steps", "the later half of the common log lines has ",
          comparison_.training_loss.compared_steps, " training losses; a verdict needs ", kLeastValues,
          ", so train longer or set logging.interval_steps lower");
    }
    const auto& validation = comparison_.validation_loss;
    if (validation.verdict == ComparisonVerdict::kUnknown && validation.common_steps > 0) {
      add("too_few_validations", "the later half of the common validations has ", validation.compared_steps,
          "; a verdict needs ", kLeastValues, ", so set evaluation.interval_steps lower");
    }
  }

 private:
  template <typename... Parts>
  void add(const char* code, const Parts&... parts) {
    comparison_.notes.push_back({code, util::printable(concat(parts...))});
  }

  Comparison& comparison_;
};

}  // namespace

void add_notes(Comparison& comparison, bool has_environments) {
  ComparisonNotes notes(comparison);
  notes.about_run(0);
  notes.about_run(1);
  notes.about_configs();
  notes.about_environments(has_environments);
  notes.about_both();
}

}  // namespace fsdp::report
