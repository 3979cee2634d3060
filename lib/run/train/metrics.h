#pragma once

// metrics.jsonl: one JSON object a line, for programs, and the same numbers as a table and for TensorBoard.
// Rank 0 writes them.

#include <cstdint>
#include <filesystem>
#include <future>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/device/cuda.h"
#include "base/util/work_queue.h"
#include "run/train/evaluate.h"
#include "run/train/record_file.h"
#include "run/train/slow_ranks.h"
#include "run/train/tensorboard.h"

namespace fsdp::train {

struct StepMetrics {
  int64_t step = 0;
  double loss = 0.0;  ///< NaN, as the norm, of a step without targets
  double grad_norm = 0.0;
  double lr = 0.0;
  int64_t tokens = 0;  ///< seen since the run began, over all ranks
  double tokens_per_second = 0.0;
  double step_seconds = 0.0;      ///< mean since the line before
  int64_t peak_memory_bytes = 0;  ///< of the process, in host memory
  std::optional<util::CudaMemory> gpu = std::nullopt;
  int64_t minor_faults = 0;                         ///< util::minor_faults()
  std::optional<double> loss_scale = std::nullopt;  ///< for the next step; only with a loss scaler
  /// Model FLOPs utilisation: the model's arithmetic as a share of the best rate of matrix products of all
  /// ranks. The rate is that of param_dtype with training.float8 too, so that runs with and without it
  /// compare.
  std::optional<double> mfu = std::nullopt;
  std::optional<double> hfu = std::nullopt;          ///< hardware FLOPs utilisation: recomputation counts too
  std::optional<double> peak_tflops = std::nullopt;  ///< per rank: these are shares of it, see PeakRate
  double data_wait_seconds = 0.0;  ///< mean per step since the line before: the rank waited for its batches
  /// Steps of the run whose update was skipped, for their loss or norm, because gradients overflowed at
  /// their loss scale, or because no target counted; only with a loss scaler, an update guard or a step without
  /// targets.
  std::optional<int64_t> skipped_steps = std::nullopt;
  std::optional<RankFactor> slowest = std::nullopt;  ///< of the steps since the line before
  std::optional<RankFactor> slow = std::nullopt;     ///< the slowest of those that are named as slow
};

/// Which metrics of an earlier start a run that resumes keeps: those from before it.
struct KeptMetrics {
  int64_t resumed_step = 0;  ///< 0: starts anew
  /// The run begins with the validation of that step. If there is one already, the run that wrote it was
  /// killed before it had saved it.
  bool validates_again = false;

  bool have(int64_t step, bool is_validation) const {
    return step < resumed_step || (step == resumed_step && !(is_validation && validates_again));
  }
};

/// What is written beside metrics.jsonl.
struct MetricsFormats {
  /// folder/metrics.csv: the numbers of metrics.jsonl as a table with a heading, a row a line; numbers that a
  /// line does not have, as a validation has no norm, are empty.
  bool csv = false;
  bool tensorboard = false;  ///< event files in folder/tensorboard, see tensorboard.h
};

/// The line of a validation.
nlohmann::ordered_json validation_line(int64_t step, const Validation& validation);

/// Lines are written by a thread, for which write() waits for a second at most: rank 0 would otherwise keep the other
/// ranks waiting while a disk stalls.
class MetricsFile {
 public:
  /// Opens folder/metrics.jsonl. Lines that are not `kept` are dropped: the run writes them again. A run that
  /// starts anew (resumed_step 0) puts an older file aside as metrics.<n>.jsonl. The same applies to
  /// metrics.csv; a table with other columns is put aside too.
  MetricsFile(const std::filesystem::path& folder, const KeptMetrics& kept,
              const MetricsFormats& formats = {});
  ~MetricsFile() { finish(); }
  MetricsFile(const MetricsFile&) = delete;
  MetricsFile& operator=(const MetricsFile&) = delete;

  /// A line that cannot be written, because the disk is full, is left out; the first of several such lines
  /// brings a warning. The run is worth more than its log.
  void write(const StepMetrics& metrics);
  void write_validation(const nlohmann::ordered_json& line) { write_line(line); }

  /// Returns when all lines are written.
  void finish() const;

  /// Whether there is a line of that step with that key, such as "loss", among the last.
  bool ends_with(int64_t step, const char* key) const;

  const std::filesystem::path& path() const { return file_.path(); }

 private:
  void write_line(const nlohmann::ordered_json& line);

  RecordFile file_;
  std::optional<RecordFile> csv_;
  std::optional<TensorBoardFile> tensorboard_;
  std::future<void> last_;           ///< of the line that was added last
  util::WorkQueue<void> writer_{1};  ///< ends first
};

}  // namespace fsdp::train
