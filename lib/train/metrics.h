#pragma once

// metrics.jsonl: one JSON object a line, for programs, and the same numbers in other formats. Rank 0 writes
// them.

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "train/evaluate.h"
#include "train/metrics_csv.h"
#include "train/record_file.h"
#include "train/tensorboard.h"
#include "util/cuda.h"

namespace fsdp::train {

struct StepMetrics {
  int64_t step = 0;
  double loss = 0.0;
  double grad_norm = 0.0;
  double lr = 0.0;
  int64_t tokens = 0;  ///< seen since the run began, over all ranks
  double tokens_per_second = 0.0;
  double step_seconds = 0.0;      ///< mean since the line before
  int64_t peak_memory_bytes = 0;  ///< of the process, in host memory
  std::optional<util::CudaMemory> gpu = std::nullopt;
  int64_t minor_faults = 0;                         ///< util::minor_faults()
  std::optional<double> loss_scale = std::nullopt;  ///< for the next step; only with a loss scaler
  /// Of the model's arithmetic, in the best rate of matrix products of all ranks: model FLOPs utilisation.
  /// The rate is that of param_dtype with training.float8 too, so that runs with and without it compare.
  std::optional<double> mfu = std::nullopt;
  std::optional<double> peak_tflops = std::nullopt;  ///< of a rank: what mfu is a share of, see PeakRate
  double data_wait_seconds = 0.0;  ///< mean of a step since the line before: the rank waited for its batches
  /// Steps of the run whose update was skipped: for their loss or norm, or for gradients that overflowed at
  /// their loss scale; only where that may be.
  std::optional<int64_t> skipped_steps = std::nullopt;
};

/// What is written beside metrics.jsonl.
struct MetricsFormats {
  bool csv = false;          ///< folder/metrics.csv, see metrics_csv.h
  bool tensorboard = false;  ///< event files in folder/tensorboard, see tensorboard.h
};

class MetricsFile {
 public:
  /// Opens folder/metrics.jsonl. Lines that are not `kept` are dropped: the run writes them again. A run that
  /// starts anew (resumed_step 0) puts an older file aside as metrics.<n>.jsonl.
  MetricsFile(const std::filesystem::path& folder, const KeptMetrics& kept,
              const MetricsFormats& formats = {});

  /// A line that cannot be written, because the disk is full, is left out with a warning, the first one of a
  /// row: the run is worth more than its log.
  void write(const StepMetrics& metrics);
  void write_validation(int64_t step, const Validation& validation);

  const std::filesystem::path& path() const { return file_.path(); }

 private:
  void write_line(const nlohmann::ordered_json& line);

  RecordFile file_;
  std::optional<MetricsCsv> csv_;
  std::optional<TensorBoardFile> tensorboard_;
};

}  // namespace fsdp::train
