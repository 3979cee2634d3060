#include "run/train/metrics.h"

#include <algorithm>
#include <chrono>
#include <fstream>
#include <functional>
#include <iterator>
#include <sstream>
#include <string>
#include <string_view>

#include "base/util/clock.h"
#include "base/util/error.h"
#include "base/util/file.h"
#include "tools/report/run_record.h"

namespace fsdp::train {
namespace fs = std::filesystem;
namespace {

/// Longest wait for the disk. A process that ends at once after a step has usually written the step's line,
/// which nobody writes again when replicas go on; a disk that stalls for longer keeps no rank waiting.
constexpr std::chrono::milliseconds kPatienceWithDisk{500};

/// Calls `use` with each line and its numbers; a line torn by a crash ends the file.
void for_each_record(const std::string& content,
                     const std::function<void(const std::string& line, const nlohmann::json& numbers)>& use) {
  std::istringstream lines(content);
  for (std::string line; std::getline(lines, line);) {
    const auto numbers = report::parse_metrics(line);
    if (!numbers) return;
    use(line, *numbers);
  }
}

/// Returns the lines of the steps that are kept.
std::string kept_lines(const std::string& content, const KeptMetrics& kept_steps) {
  std::string kept;
  for_each_record(content, [&](const std::string& line, const nlohmann::json& numbers) {
    if (kept_steps.have(numbers.at("step"), numbers.contains("validation_loss"))) kept += line + "\n";
  });
  return kept;
}

/// The last lines of a file, which may be long, and their offset.
struct LastLines {
  uint64_t begin = 0;
  std::string text;
};
LastLines last_lines(const fs::path& path) {
  constexpr uint64_t kMostBytes = 16 << 10;
  if (!fs::is_regular_file(path)) {
    fail(ErrorKind::kIo, path.string(), " must be a file, but is a folder, a device or a pipe; remove it");
  }
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  const auto size = static_cast<uint64_t>(file.tellg());
  LastLines last{.begin = size - std::min(size, kMostBytes), .text = {}};
  file.seekg(static_cast<std::streamoff>(last.begin));
  last.text.assign(std::istreambuf_iterator<char>(file), {});
  if (!file) fail(ErrorKind::kIo, "cannot read ", path.string());
  if (last.begin == 0) return last;
  const size_t whole = last.text.find('\n') + 1;
  last.begin += whole;
  last.text.erase(0, whole);
  return last;
}

fs::path prepared(const fs::path& path, const KeptMetrics& kept) {
  if (!fs::exists(path)) return path;
  if (kept.resumed_step == 0) {
    put_aside(path);
    return path;
  }
  // Steps ascend: if the last lines begin with one that is kept, so are those before, and nothing need be
  // copied.
  const LastLines last = last_lines(path);
  const std::string lines = kept_lines(last.text, kept);
  if (!lines.empty() && last.text.starts_with(lines)) {
    if (lines.size() < last.text.size()) fs::resize_file(path, last.begin + lines.size());
  } else {
    util::write_file_atomically(path, kept_lines(util::read_file(path), kept));
  }
  return path;
}

constexpr std::string_view kColumns =
    "step,loss,grad_norm,lr,tokens,tokens_per_second,step_seconds,peak_memory_bytes,minor_faults,"
    "data_wait_seconds,mfu,loss_scale,skipped_steps,validation_loss,validation_perplexity,"
    "validation_bits_per_byte,gpu_peak_allocated_bytes,gpu_peak_reserved_bytes,gpu_allocator_retries,"
    "peak_tflops,validation_accuracy,hfu,slowest_rank,slowest_rank_factor,slow_rank,slow_rank_factor,last_loss,"
    "eta_seconds,time";

template <typename Json>
std::string csv_row(const Json& line, const std::string& names) {
  std::string row;
  std::istringstream columns(names);
  for (std::string column; std::getline(columns, column, ',');) {
    if (column != "step") row += ',';
    auto value = line.find(column);
    if (value != line.end() && !value->is_null()) row += value->dump();
  }
  return row + "\n";
}

/// Writes the rows of `lines` anew if the run resumes and the table has the same columns.
fs::path prepared_csv(const fs::path& path, const KeptMetrics& kept, const fs::path& lines,
                      const std::string& columns) {
  std::string rows = columns + "\n";
  if (fs::exists(path)) {
    if (kept.resumed_step > 0 && util::read_file(path).starts_with(rows)) {
      for_each_record(util::read_file(lines), [&](const std::string&, const nlohmann::json& numbers) {
        rows += csv_row(numbers, columns);
      });
    } else {
      put_aside(path);
    }
  }
  util::write_file_atomically(path, rows);
  return path;
}

/// Returns TensorBoard's curves of a line.
Scalars scalars_of(const nlohmann::ordered_json& line) {
  static constexpr std::pair<const char*, const char*> kCurves[] = {
      {"loss", "train/loss"},
      {"last_loss", "train/last_loss"},
      {"grad_norm", "train/grad_norm"},
      {"lr", "train/lr"},
      {"tokens_per_second", "train/tokens_per_second"},
      {"data_wait_seconds", "train/data_wait_seconds"},
      {"peak_memory_bytes", "train/peak_memory_bytes"},
      {"gpu_peak_allocated_bytes", "train/gpu_peak_allocated_bytes"},
      {"mfu", "train/mfu"},
      {"hfu", "train/hfu"},
      {"loss_scale", "train/loss_scale"},
      {"slowest_rank", "train/slowest_rank"},
      {"slowest_rank_factor", "train/slowest_rank_factor"},
      {"slow_rank", "train/slow_rank"},
      {"validation_loss", "validation/loss"},
      {"validation_perplexity", "validation/perplexity"},
      {"validation_bits_per_byte", "validation/bits_per_byte"},
      {"validation_accuracy", "validation/accuracy"}};
  Scalars scalars;
  for (const auto& [key, tag] : kCurves) {
    if (const auto value = line.find(key); value != line.end())
      scalars.emplace_back(tag, value->get<double>());
  }
  for (const auto& [key, value] : line.items()) {
    constexpr std::string_view kValidation = "validation_";
    if (key.starts_with("task/")) {
      scalars.emplace_back(key, value.get<double>());
    } else if (key.find('/') != std::string::npos) {
      const bool of_validation = key.starts_with(kValidation);
      const std::string name = key.substr(of_validation ? kValidation.size() : 0);
      scalars.emplace_back((of_validation ? "validation/" : "train/") + name, value.get<double>());
    }
  }
  return scalars;
}

}  // namespace

MetricsFile::MetricsFile(const fs::path& folder, const KeptMetrics& kept, const MetricsFormats& formats)
    : file_(prepared(folder / "metrics.jsonl", kept)), columns_(kColumns) {
  for (const std::string& column : formats.columns) columns_ += "," + column;
  if (formats.csv) csv_.emplace(prepared_csv(folder / "metrics.csv", kept, path(), columns_));
  if (formats.tensorboard) tensorboard_.emplace(folder / "tensorboard", kept.resumed_step);
}

void MetricsFile::finish() const {
  if (last_.valid()) last_.wait();
}

bool MetricsFile::ends_with(int64_t step, const char* key) const {
  finish();
  bool found = false;
  for_each_record(last_lines(path()).text, [&](const std::string&, const nlohmann::json& numbers) {
    found = found || (numbers.at("step") == step && numbers.contains(key));
  });
  return found;
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
  if (metrics.last_loss) line["last_loss"] = *metrics.last_loss;
  if (metrics.eta_seconds) line["eta_seconds"] = *metrics.eta_seconds;
  if (metrics.gpu) {
    line["gpu_peak_allocated_bytes"] = metrics.gpu->peak_allocated_bytes;
    line["gpu_peak_reserved_bytes"] = metrics.gpu->peak_reserved_bytes;
    line["gpu_allocator_retries"] = metrics.gpu->retries;
  }
  if (metrics.mfu) line["mfu"] = *metrics.mfu;
  if (metrics.hfu) line["hfu"] = *metrics.hfu;
  if (metrics.peak_tflops) line["peak_tflops"] = *metrics.peak_tflops;
  if (metrics.loss_scale) line["loss_scale"] = *metrics.loss_scale;
  if (metrics.skipped_steps) line["skipped_steps"] = *metrics.skipped_steps;
  if (metrics.slowest) {
    line["slowest_rank"] = metrics.slowest->rank;
    line["slowest_rank_factor"] = metrics.slowest->factor;
  }
  if (metrics.slow) {
    line["slow_rank"] = metrics.slow->rank;
    line["slow_rank_factor"] = metrics.slow->factor;
    line["slow_rank_host"] = util::printable(metrics.slow->host);
  }
  for (const auto& [name, value] : metrics.of_objective) line[name] = value;
  write_line(line);
}

nlohmann::ordered_json validation_line(int64_t step, const Validation& validation) {
  nlohmann::ordered_json line = {{"step", step}, {"validation_loss", validation.loss}};
  if (validation.is_of_tokens) line["validation_perplexity"] = validation.perplexity();
  if (auto bits = validation.bits_per_byte()) line["validation_bits_per_byte"] = *bits;
  if (validation.accuracy) line["validation_accuracy"] = *validation.accuracy;
  for (const auto& [name, value] : validation.of_objective) line["validation_" + name] = value;
  return line;
}

void MetricsFile::write_line(const nlohmann::ordered_json& numbers) {
  nlohmann::ordered_json line = {{"step", numbers.at("step")}, {"time", util::utc_text()}};
  line.update(numbers);
  last_ = writer_.add([this, line = std::move(line)] {
    file_.append(line.dump() + "\n");
    if (csv_) csv_->append(csv_row(line, columns_));
    if (tensorboard_) tensorboard_->write(line["step"].get<int64_t>(), scalars_of(line));
  });
  last_.wait_for(kPatienceWithDisk);
}

}  // namespace fsdp::train
