#pragma once

// RunExporter: shows a run to a monitoring system such as Prometheus (logging.metrics_port,
// logging.metrics_textfile).

#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>

#include "base/openmetrics/http_server.h"
#include "base/openmetrics/text_file.h"
#include "run/train/checkpointer.h"
#include "run/train/run_figures.h"
#include "run/train/run_metrics.h"
#include "run/train/run_state.h"
#include "run/train/step_meter.h"
#include "run/train/step_observer.h"

namespace fsdp::train {

/// Reads the run between its steps. Threads of their own answer requests and write the file, from a copy, so
/// that neither ever delays a step.
class RunExporter final : public StepObserver {
 public:
  /// The parts of a run that are read; they must outlive the object.
  struct Sources {
    const RunState& run;
    const RunMetrics& metrics;
    const Checkpointer& checkpointer;
    const TimedBatches& batches;
  };
  /// Serves and writes what the config says. `local_rank`: number among the ranks of this host. Throws
  /// Error(kUsage) if the port is not free, and Error(kIo) if the file cannot be written. Not collective.
  RunExporter(const Sources& sources, int local_rank);
  /// Takes the last figures, such as those of the save at the end. The file stays, unless other ranks
  /// continue the run, whose first rank may be on another host.
  ~RunExporter() override;

  void begin(ObservedStep& last) override;
  void begin_step(const ObservedStep& step) override;
  void end_step(ObservedStep& step) override;
  void between_steps(ObservedStep& step) override;
  void finish() override;

 private:
  std::string text(openmetrics::TextFormat format) const;
  void serve(int port);
  void update();

  Sources from_;
  std::chrono::steady_clock::time_point step_began_;
  mutable std::mutex mutex_;
  RunFigures figures_;  ///< guarded by mutex_
  // The last members, whose threads end first.
  std::unique_ptr<openmetrics::TextFile> file_;
  std::unique_ptr<openmetrics::HttpServer> server_;
};

/// Returns null if the config wants no metrics of this rank. Collective. Throws the errors of RunExporter as
/// AgreedError.
std::shared_ptr<RunExporter> make_run_exporter(const RunExporter::Sources& sources);

}  // namespace fsdp::train
