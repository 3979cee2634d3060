#include "run/train/run_figures.h"

#include <string>
#include <string_view>
#include <utility>

#include "base/util/system.h"

namespace fsdp::train {
namespace {

using openmetrics::Family;
using openmetrics::Labels;
using openmetrics::MetricType;

constexpr MetricType kGauge = MetricType::kGauge, kCounter = MetricType::kCounter,
                     kSummary = MetricType::kSummary;

class FamilyList {
 public:
  explicit FamilyList(Labels labels) : labels_(std::move(labels)) {}

  /// Adds a family, which samples follow.
  void begin(MetricType type, std::string name, std::string unit, std::string help) {
    if (!unit.empty()) name += "_" + unit;
    families_.push_back({"fsdp_" + name, type, std::move(unit), std::move(help)});
  }
  void sample(double value, const Labels& more = {}, std::string suffix = {}) {
    Labels labels = labels_;
    labels.insert(labels.end(), more.begin(), more.end());
    families_.back().samples.push_back({value, std::move(labels), std::move(suffix)});
  }

  void gauge(const char* name, const char* unit, const char* help, std::optional<double> value) {
    begin(kGauge, name, unit, help);
    if (value) sample(*value);
  }
  void counter(const char* name, const char* unit, const char* help, std::optional<double> value) {
    begin(kCounter, name, unit, help);
    if (value) sample(*value);
  }
  void summary(const char* name, const char* unit, const char* help, int64_t count, double sum) {
    begin(kSummary, name, unit, help);
    sample(static_cast<double>(count), {}, "_count");
    sample(sum, {}, "_sum");
  }

  std::vector<Family> take() { return std::move(families_); }

 private:
  Labels labels_;
  std::vector<Family> families_;
};

double seconds_of(std::chrono::system_clock::time_point time) {
  return std::chrono::duration<double>(time.time_since_epoch()).count();
}

/// Adds what each rank knows of itself.
void add_own(FamilyList& list, const RunFigures& run) {
  list.gauge("step", "", "Steps of the run that are done.", static_cast<double>(run.step));
  list.summary("step_duration", "seconds", "Steps since this start, and their time.", run.steps,
               run.step_seconds);
  list.gauge("last_step_timestamp", "seconds", "Time at which the last step of this start ended.",
             run.last_step_at);
  list.counter("data_wait", "seconds", "Time for which steps of this start have waited for batches.",
               run.data_wait_seconds);
  list.counter("communication_wait", "seconds",
               "Time for which collectives of this start have blocked the training thread (on CPUs).",
               run.communication_wait_seconds);
  list.gauge("resident_memory", "bytes", "Memory of the process.",
             static_cast<double>(util::resident_bytes()));
  list.gauge("resident_memory_peak", "bytes", "Peak of the memory of the process.",
             static_cast<double>(util::peak_resident_bytes()));
  list.counter("minor_page_faults", "", "Page faults of the process that needed no read from disk.",
               static_cast<double>(util::minor_faults()));
  const auto of_gpu = [&](int64_t util::CudaMemory::*member) {
    return run.gpu ? std::optional(static_cast<double>((*run.gpu).*member)) : std::nullopt;
  };
  list.gauge("gpu_allocated_memory", "bytes", "Memory of tensors on the GPU at the end of the last step.",
             of_gpu(&util::CudaMemory::allocated_bytes));
  list.gauge("gpu_allocated_memory_peak", "bytes", "Peak of the memory of tensors on the GPU.",
             of_gpu(&util::CudaMemory::peak_allocated_bytes));
  list.gauge("gpu_reserved_memory", "bytes", "Memory that libtorch's allocator holds on the GPU.",
             of_gpu(&util::CudaMemory::reserved_bytes));
  list.gauge("gpu_reserved_memory_peak", "bytes", "Peak of the memory that libtorch's allocator held.",
             of_gpu(&util::CudaMemory::peak_reserved_bytes));
  list.counter("gpu_allocator_retries", "", "Allocations on the GPU that first had to free cached memory.",
               of_gpu(&util::CudaMemory::retries));
}

/// Adds the numbers of the newest log line.
void add_line(FamilyList& list, const std::optional<StepMetrics>& line) {
  const auto of_line = [&](const auto& member) -> std::optional<double> {
    if (!line) return std::nullopt;
    return static_cast<double>((*line).*member);
  };
  const auto if_known = [&](const auto& member) -> std::optional<double> {
    if (!line || !((*line).*member)) return std::nullopt;
    return static_cast<double>(*((*line).*member));
  };
  list.gauge("loss", "", "Loss of the last log line.", of_line(&StepMetrics::loss));
  list.gauge("grad_norm", "", "Norm of the gradient before clipping.", of_line(&StepMetrics::grad_norm));
  list.gauge("learning_rate", "", "Learning rate.", of_line(&StepMetrics::lr));
  list.gauge("loss_scale", "", "Scale of the loss for the next step.", if_known(&StepMetrics::loss_scale));
  list.counter("skipped_steps", "", "Steps of the run without an update.",
               if_known(&StepMetrics::skipped_steps));
  list.gauge("tokens_per_second", "", "Tokens of all ranks per second of training.",
             of_line(&StepMetrics::tokens_per_second));
  list.gauge("mfu", "ratio", "Model FLOPs utilization.", if_known(&StepMetrics::mfu));
  list.gauge("hfu", "ratio", "Hardware FLOPs utilization, which includes recomputation.",
             if_known(&StepMetrics::hfu));
  list.gauge("remaining", "seconds", "Estimated time to the end of the run.",
             if_known(&StepMetrics::eta_seconds));
  const auto rank_factor = [&](const char* name, const char* help, const std::optional<RankFactor>& rank) {
    list.begin(kGauge, name, "ratio", help);
    if (rank)
      list.sample(rank->factor, {{"slow_rank", std::to_string(rank->rank)}, {"slow_host", rank->host}});
  };
  rank_factor("slowest_rank", "Time of the slowest rank for the same work, relative to the others'.",
              line ? line->slowest : std::nullopt);
  rank_factor("slow_rank", "The same, of a rank that a warning has named as slow; none otherwise.",
              line ? line->slow : std::nullopt);
  list.begin(kGauge, "objective_metric", "", "Metrics of training.objective.");
  if (line) {
    for (const auto& [name, value] : line->of_objective) list.sample(value, {{"metric", name}});
  }
}

void add_validation(FamilyList& list, const nlohmann::ordered_json& numbers) {
  constexpr std::string_view kPrefix = "validation_";
  const auto number = [&](const char* key) {
    const auto found = numbers.find(key);
    return found != numbers.end() && found->is_number() ? std::optional(found->get<double>()) : std::nullopt;
  };
  list.gauge("validation_loss", "", "Loss of the newest validation.", number("validation_loss"));
  list.gauge("validation_step", "", "Step of the newest validation.", number("step"));
  list.begin(kGauge, "validation_metric", "", "Other metrics of the newest validation, and of tasks.");
  for (const auto& [key, value] : numbers.items()) {
    if (key == "step" || key == "validation_loss" || !value.is_number()) continue;
    const std::string name = key.starts_with(kPrefix) ? key.substr(kPrefix.size()) : key;
    list.sample(value.get<double>(), {{"metric", name}});
  }
}

void add_saves(FamilyList& list, const SharedFigures& run) {
  const Checkpointer::SaveCounts& saves = run.saves;
  list.gauge("checkpoint_step", "", "Step of the newest checkpoint of the run.",
             run.checkpoint_step ? std::optional(static_cast<double>(*run.checkpoint_step)) : std::nullopt);
  list.gauge("checkpoint_timestamp", "seconds", "Time at which the last save of this start was complete.",
             saves.saved > 0 ? std::optional(seconds_of(saves.last_saved_at)) : std::nullopt);
  list.summary("checkpoint_save_duration", "seconds",
               "Complete saves of this start, and the time from their begin to their end.", saves.saved,
               saves.seconds);
  list.counter("checkpoint_failures", "", "Saves of this start that failed or were found damaged.",
               static_cast<double>(saves.failed));
}

void add_shared(FamilyList& list, const SharedFigures& run) {
  list.begin(MetricType::kInfo, "run", "", "What the run is.");
  list.sample(1, run.info);
  list.gauge("running", "", "1 until the run has ended as it should, 0 afterwards.", run.is_running ? 1 : 0);
  list.gauge("planned_steps", "", "Steps of the whole run.", static_cast<double>(run.planned_steps));
  list.counter("tokens", "", "Tokens that the run has been trained on.", static_cast<double>(run.tokens));
  list.gauge("ranks", "", "Processes of the run.", static_cast<double>(run.ranks));
  list.gauge("replicas", "", "Replicas of the state, the ranks along mesh.dcn.",
             static_cast<double>(run.replicas));
  list.counter("restarts", "", "Times that the launcher has restarted the processes.",
               static_cast<double>(run.restarts));
  add_line(list, run.line);
  add_validation(list, run.validation);
  list.begin(kCounter, "pause", "seconds", "Time of this start between steps, by its purpose.");
  for (const auto& [kind, name] : {std::pair(Pause::kValidation, "validation"),
                                   std::pair(Pause::kSample, "sample"), std::pair(Pause::kSave, "save")}) {
    list.sample(run.pause_seconds[static_cast<size_t>(kind)], {{"purpose", name}});
  }
  add_saves(list, run);
}

}  // namespace

std::vector<Family> families_of(const RunFigures& figures) {
  FamilyList list(figures.labels);
  if (figures.shared) add_shared(list, *figures.shared);
  add_own(list, figures);
  return list.take();
}

}  // namespace fsdp::train
