#include "train/metrics.h"

#include <cerrno>
#include <nlohmann/json.hpp>
#include <sstream>

#include "util/error.h"
#include "util/file.h"
#include "util/log.h"

namespace fsdp::train {
namespace fs = std::filesystem;
namespace {

/// The lines up to and including `last_step`; a line torn by a crash ends the file.
std::string lines_until(const std::string& content, int64_t last_step) {
  std::string kept, line;
  std::istringstream lines(content);
  while (std::getline(lines, line)) {
    auto parsed = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!parsed.is_object() || !parsed.contains("step") || !parsed["step"].is_number_integer()) break;
    if (parsed["step"].get<int64_t>() <= last_step) kept += line + "\n";
  }
  return kept;
}

void put_aside(const fs::path& path) {
  for (int n = 1;; ++n) {
    fs::path aside = path.parent_path() / util::concat("metrics.", n, ".jsonl");
    if (fs::exists(aside)) continue;
    util::rename_and_sync(path, aside);
    return;
  }
}

}  // namespace

MetricsFile::MetricsFile(const fs::path& folder, int64_t resumed_step) : path_(folder / "metrics.jsonl") {
  if (fs::exists(path_)) {
    if (resumed_step > 0) {
      util::write_file_atomically(path_, lines_until(util::read_file(path_), resumed_step));
    } else {
      put_aside(path_);
    }
  }
  file_.open(path_, std::ios::app);
  if (!file_) util::fail(util::ErrorKind::kIo, "cannot open ", path_.string(), ": ", util::errno_text(errno));
  whole_bytes_ = fs::file_size(path_);
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
  if (metrics.mfu) line["mfu"] = *metrics.mfu;
  if (metrics.loss_scale) line["loss_scale"] = *metrics.loss_scale;
  if (metrics.skipped_steps) line["skipped_steps"] = *metrics.skipped_steps;
  write_line(line.dump());
}

void MetricsFile::write_validation(int64_t step, const Validation& validation) {
  nlohmann::ordered_json line = {{"step", step},
                                 {"validation_loss", validation.loss},
                                 {"validation_perplexity", validation.perplexity()}};
  if (auto bits = validation.bits_per_byte()) line["validation_bits_per_byte"] = *bits;
  write_line(line.dump());
}

void MetricsFile::write_line(const std::string& line) {
  file_ << line << '\n' << std::flush;
  if (file_) {
    whole_bytes_ += line.size() + 1;
    failing_ = false;
    return;
  }
  int cause = errno;
  if (!failing_) {
    util::log_warning(util::concat("cannot write ", path_.string(), ": ", util::errno_text(cause),
                                   "; steps are missing in it until there is space on that disk"));
  }
  failing_ = true;
  // The stream still holds the line and may have written a part of it.
  file_.close();
  std::error_code ignored;
  fs::resize_file(path_, whole_bytes_, ignored);
  file_.clear();
  file_.open(path_, std::ios::app);
}

}  // namespace fsdp::train
