#include "train/metrics.h"

#include <nlohmann/json.hpp>
#include <sstream>

#include "util/file.h"

namespace fsdp::train {
namespace fs = std::filesystem;
namespace {

/// The lines of the steps that are kept; a line torn by a crash ends the file.
std::string lines_until(const std::string& content, const KeptMetrics& kept_steps) {
  std::string kept, line;
  std::istringstream lines(content);
  while (std::getline(lines, line)) {
    auto parsed = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!parsed.is_object() || !parsed.contains("step") || !parsed["step"].is_number_integer()) break;
    if (kept_steps.have(parsed["step"].get<int64_t>(), parsed.contains("validation_loss")))
      kept += line + "\n";
  }
  return kept;
}

fs::path prepared(const fs::path& path, const KeptMetrics& kept) {
  if (!fs::exists(path)) return path;
  if (kept.resumed_step > 0) {
    util::write_file_atomically(path, lines_until(util::read_file(path), kept));
  } else {
    put_aside(path);
  }
  return path;
}

}  // namespace

MetricsFile::MetricsFile(const fs::path& folder, const KeptMetrics& kept, const MetricsFormats& formats)
    : file_(prepared(folder / "metrics.jsonl", kept)) {
  if (formats.csv) csv_.emplace(folder, kept);
  if (formats.tensorboard) tensorboard_.emplace(folder / "tensorboard", kept.resumed_step);
}

void MetricsFile::write(const StepMetrics& metrics) {
  nlohmann::ordered_json line = {{"step", metrics.step},
                                 {"loss", metrics.loss},
                                 {"grad_norm", metrics.grad_norm},
                                 {"lr", metrics.lr},
                                 {"tokens", metrics.tokens},
                                 {"tokens_per_second", metrics.tokens_per_second},
                                 {"step_seconds", metrics.step_seconds},
                                 {"peak_memory_bytes", metrics.peak_memory_bytes},
                                 {"minor_faults", metrics.minor_faults},
                                 {"data_wait_seconds", metrics.data_wait_seconds}};
  if (metrics.gpu) {
    line["gpu_peak_allocated_bytes"] = metrics.gpu->peak_allocated_bytes;
    line["gpu_peak_reserved_bytes"] = metrics.gpu->peak_reserved_bytes;
    line["gpu_allocator_retries"] = metrics.gpu->retries;
  }
  if (metrics.mfu) line["mfu"] = *metrics.mfu;
  if (metrics.peak_tflops) line["peak_tflops"] = *metrics.peak_tflops;
  if (metrics.loss_scale) line["loss_scale"] = *metrics.loss_scale;
  if (metrics.skipped_steps) line["skipped_steps"] = *metrics.skipped_steps;
  write_line(line);
  if (!tensorboard_) return;
  Scalars scalars = {{"train/loss", metrics.loss},
                     {"train/grad_norm", metrics.grad_norm},
                     {"train/lr", metrics.lr},
                     {"train/tokens_per_second", metrics.tokens_per_second},
                     {"train/data_wait_seconds", metrics.data_wait_seconds},
                     {"train/peak_memory_bytes", static_cast<double>(metrics.peak_memory_bytes)}};
  if (metrics.gpu) {
    scalars.emplace_back("train/gpu_peak_allocated_bytes",
                         static_cast<double>(metrics.gpu->peak_allocated_bytes));
  }
  if (metrics.mfu) scalars.emplace_back("train/mfu", *metrics.mfu);
  if (metrics.loss_scale) scalars.emplace_back("train/loss_scale", *metrics.loss_scale);
  tensorboard_->write(metrics.step, scalars);
}

void MetricsFile::write_validation(int64_t step, const Validation& validation) {
  nlohmann::ordered_json line = {{"step", step},
                                 {"validation_loss", validation.loss},
                                 {"validation_perplexity", validation.perplexity()}};
  Scalars scalars = {{"validation/loss", validation.loss},
                     {"validation/perplexity", validation.perplexity()}};
  if (auto bits = validation.bits_per_byte()) {
    line["validation_bits_per_byte"] = *bits;
    scalars.emplace_back("validation/bits_per_byte", *bits);
  }
  write_line(line);
  if (tensorboard_) tensorboard_->write(step, scalars);
}

void MetricsFile::write_line(const nlohmann::ordered_json& line) {
  file_.append(line.dump() + "\n");
  if (csv_) csv_->write(line);
}

}  // namespace fsdp::train
