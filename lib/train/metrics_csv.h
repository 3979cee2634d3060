#pragma once

// metrics.csv: the numbers of metrics.jsonl as a table. A heading, then a row a line there; what a row has no
// number for, a validation's norm or a step's validation loss, is empty.

#include <filesystem>
#include <nlohmann/json.hpp>

#include "train/record_file.h"

namespace fsdp::train {

class MetricsCsv {
 public:
  /// Opens folder/metrics.csv as MetricsFile does: rows after `resumed_step` are dropped, and an older run's
  /// table, or one with other columns, is put aside.
  MetricsCsv(const std::filesystem::path& folder, int64_t resumed_step);

  /// A line of metrics.jsonl.
  void write(const nlohmann::ordered_json& line);

 private:
  RecordFile file_;
};

}  // namespace fsdp::train
