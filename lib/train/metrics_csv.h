#pragma once

// metrics.csv: the numbers of metrics.jsonl as a table. A heading, then a row a line there; what a row has no
// number for, a validation's norm or a step's validation loss, is empty.

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "train/record_file.h"

namespace fsdp::train {

/// What a run that resumes keeps of the metrics that are there: what came before it.
struct KeptMetrics {
  int64_t resumed_step = 0;  ///< 0: starts anew
  /// The run begins with the validation of that step. One that is there was written by a run that was killed
  /// before it had saved that.
  bool validates_again = false;

  bool have(int64_t step, bool is_validation) const {
    return step < resumed_step || (step == resumed_step && !(is_validation && validates_again));
  }
};

class MetricsCsv {
 public:
  /// Opens folder/metrics.csv as MetricsFile does: rows that are not kept are dropped, and an older run's
  /// table, or one with other columns, is put aside.
  MetricsCsv(const std::filesystem::path& folder, const KeptMetrics& kept);

  /// A line of metrics.jsonl.
  void write(const nlohmann::ordered_json& line);

 private:
  RecordFile file_;
};

}  // namespace fsdp::train
