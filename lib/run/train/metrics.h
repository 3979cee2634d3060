#pragma once

// MetricsFile: writes metrics.jsonl, one JSON object a line, and the same numbers as a table and for
// TensorBoard. Used on rank 0.

#include <cstdint>
#include <filesystem>
#include <future>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/device/cuda.h"
#include "base/util/work_queue.h"
#include "run/train/evaluate.h"
#include "run/train/objective.h"
#include "run/train/record_file.h"
#include "run/train/slow_ranks.h"
#include "run/train/tensorboard.h"

namespace fsdp::train {

struct StepMetrics {
  int64_t step = 0;
  /// Mean over the steps since the last multiple of logging.interval_steps; NaN, like the norm, if none of
  /// them had targets.
  double loss = 0.0;
  double grad_norm = 0.0;
  double lr = 0.0;
  int64_t tokens = 0;  ///< tokens seen since the run began, over all ranks
  double tokens_per_second = 0.0;
  double step_seconds = 0.0;      ///< mean of the steps since the line before
  int64_t peak_memory_bytes = 0;  ///< peak of the process in host memory
  std::optional<util::CudaMemory> gpu = std::nullopt;
  int64_t minor_faults = 0;                         ///< util::minor_faults()
  std::optional<double> loss_scale = std::nullopt;  ///< scale for the next step; only with a loss scaler
  /// Model FLOPs utilisation: the model's arithmetic as a share of the best rate of matrix products of all
  /// ranks. The rate is that of param_dtype, also with training.float8, so that runs with and without it can
  /// be compared.
  std::optional<double> mfu = std::nullopt;
  std::optional<double> hfu = std::nullopt;          ///< hardware FLOPs utilisation: recomputation counts too
  std::optional<double> peak_tflops = std::nullopt;  ///< rate per rank to which mfu and hfu are relative
  double data_wait_seconds = 0.0;                    ///< mean wait for batches per step since the line before
  /// Number of the run's steps whose update was skipped for their loss or norm, because gradients overflowed
  /// at their loss scale, or because no target counted; only with a loss scaler, an update guard or a step
  /// without targets.
  std::optional<int64_t> skipped_steps = std::nullopt;
  std::optional<RankFactor> slowest = std::nullopt;  ///< the slowest rank in the steps since the line before
  std::optional<RankFactor> slow = std::nullopt;     ///< the slowest of the ranks that are named as slow
  std::optional<double> last_loss = std::nullopt;    ///< loss of this step alone, if `loss` may be of several
  std::optional<double> eta_seconds = std::nullopt;  ///< estimated time to the end of the run
  NamedNumbers of_objective = {};                    ///< metrics of training.objective
  bool is_cross_entropy = true;  ///< whether `loss` has no other term, so that exp(loss) is the perplexity
};

/// The metrics of an earlier start that a resumed run keeps: those of the steps before it.
struct KeptMetrics {
  int64_t resumed_step = 0;  ///< 0: starts anew
  /// Whether the run begins with the validation of that step. If the file has one already, the run that wrote
  /// it was killed before it had saved it.
  bool validates_again = false;

  bool have(int64_t step, bool is_validation) const {
    return step < resumed_step || (step == resumed_step && !(is_validation && validates_again));
  }
};

/// Files that are written beside metrics.jsonl.
struct MetricsFormats {
  /// folder/metrics.csv: the numbers of metrics.jsonl as a table with a heading and a row for each line.
  /// Numbers that a line lacks are empty; a validation, for example, has no norm.
  bool csv = false;
  std::vector<std::string> columns = {};  ///< more columns of the table
  bool tensorboard = false;               ///< event files in folder/tensorboard, see tensorboard.h
};

/// Returns the line of a validation.
nlohmann::ordered_json validation_line(int64_t step, const Validation& validation);

/// Each line has the wall-clock time at which it was written. A thread writes the lines; write() waits for it
/// for half a second at most: rank 0 would otherwise keep the other ranks waiting while a disk stalls.
class MetricsFile {
 public:
  /// Opens folder/metrics.jsonl. Drops the lines that are not `kept`, which the run writes again. A run that
  /// starts anew (resumed_step 0) puts an older file aside as metrics.<n>.jsonl. The same applies to
  /// metrics.csv; a table with other columns is put aside too.
  MetricsFile(const std::filesystem::path& folder, const KeptMetrics& kept,
              const MetricsFormats& formats = {});
  ~MetricsFile() { finish(); }
  MetricsFile(const MetricsFile&) = delete;
  MetricsFile& operator=(const MetricsFile&) = delete;

  /// Writes a line. Leaves out a line that cannot be written because the disk is full, and warns at the first
  /// of several such lines, because the run is worth more than its log.
  void write(const StepMetrics& metrics);
  void write_validation(const nlohmann::ordered_json& line) { write_line(line); }

  /// Waits until all lines are written.
  void finish() const;

  /// Whether the last lines have one of that step with that key, such as "loss".
  bool ends_with(int64_t step, const char* key) const;

  const std::filesystem::path& path() const { return file_.path(); }

 private:
  void write_line(const nlohmann::ordered_json& numbers);

  RecordFile file_;
  std::optional<RecordFile> csv_;
  std::string columns_;  ///< names of the table's columns
  std::optional<TensorBoardFile> tensorboard_;
  std::future<void> last_;           ///< result of the line that was added last
  util::WorkQueue<void> writer_{1};  ///< the last member, so that it ends first
};

}  // namespace fsdp::train
