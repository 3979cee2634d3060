#include "train/metrics_csv.h"

#include <charconv>
#include <sstream>
#include <string>
#include <string_view>

#include "util/error.h"
#include "util/file.h"

namespace fsdp::train {
namespace fs = std::filesystem;
namespace {

constexpr const char* kColumns[] = {"step",
                                    "loss",
                                    "grad_norm",
                                    "lr",
                                    "tokens",
                                    "tokens_per_second",
                                    "step_seconds",
                                    "peak_memory_bytes",
                                    "minor_faults",
                                    "data_wait_seconds",
                                    "mfu",
                                    "loss_scale",
                                    "skipped_steps",
                                    "validation_loss",
                                    "validation_perplexity",
                                    "validation_bits_per_byte",
                                    "gpu_peak_allocated_bytes",
                                    "gpu_peak_reserved_bytes",
                                    "gpu_allocator_retries",
                                    "peak_tflops"};

std::string heading() {
  std::string line;
  for (const char* column : kColumns) line += util::concat(line.empty() ? "" : ",", column);
  return line + "\n";
}

/// Heading and the rows that are kept, without a row torn by a crash.
std::string rows_until(const std::string& content, const KeptMetrics& kept_steps) {
  std::string kept = heading(), line;
  std::istringstream lines(content.substr(kept.size()));
  while (std::getline(lines, line) && !lines.eof()) {  // the end of the file before that of the line: torn
    int64_t step = 0;
    const char* end = line.data() + line.size();
    if (auto read = std::from_chars(line.data(), end, step); read.ec != std::errc() || read.ptr == end) break;
    const bool is_validation =
        std::string_view(line).substr(line.find(',')).starts_with(",,");  // without a loss
    if (kept_steps.have(step, is_validation)) kept += line + "\n";
  }
  return kept;
}

fs::path prepared_csv(const fs::path& path, const KeptMetrics& kept) {
  if (fs::exists(path)) {
    const std::string content = util::read_file(path);
    if (kept.resumed_step > 0 && content.starts_with(heading())) {
      util::write_file_atomically(path, rows_until(content, kept));
      return path;
    }
    put_aside(path);
  }
  util::write_file_atomically(path, heading());
  return path;
}

}  // namespace

MetricsCsv::MetricsCsv(const fs::path& folder, const KeptMetrics& kept)
    : file_(prepared_csv(folder / "metrics.csv", kept)) {}

void MetricsCsv::write(const nlohmann::ordered_json& line) {
  std::string row;
  for (const char* column : kColumns) {
    if (column != kColumns[0]) row += ',';
    auto value = line.find(column);
    if (value != line.end() && !value->is_null()) row += value->dump();
  }
  file_.append(row + "\n");
}

}  // namespace fsdp::train
