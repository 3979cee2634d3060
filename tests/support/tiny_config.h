#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/util/file.h"
#include "setup/config/config.h"
#include "support/temporary_folder.h"
#include "support/tiny_models.h"
#include "support/token_file.h"

namespace fsdp::testing {

/// A run of a few milliseconds a step in `folder`: token files, output folder "out".
inline config::Config tiny_config(const TemporaryFolder& folder) {
  config::Config config;
  config.run.output_dir = folder / "out";
  config.model = tiny_options();
  config.model.initializer_range = 0.1;
  write_token_file(folder / "train.bin", 2000, config.model.vocab_size);
  write_token_file(folder / "validation.bin", 300, config.model.vocab_size);
  config.data.train = {folder / "train.bin"};
  config.data.validation = {folder / "validation.bin"};
  config.data.sequence_length = 8;
  config.data.micro_batch_size = 2;
  config.training.steps = 6;
  config.optimizer.lr = 1e-2;
  config.fsdp.min_num_params = 1176;
  config.checkpoint.interval_steps = 0;
  config.logging.peak_tflops = 1;  // measuring takes longer than the run
  return config;
}

/// The lines of a metrics file that have the key.
inline std::vector<nlohmann::json> metrics_with(const std::filesystem::path& path, const std::string& key) {
  std::vector<nlohmann::json> found;
  std::istringstream lines(util::read_file(path));
  for (std::string line; std::getline(lines, line);) {
    auto parsed = nlohmann::json::parse(line);
    if (parsed.contains(key)) found.push_back(parsed);
  }
  return found;
}

inline std::vector<double> values_of(const std::filesystem::path& metrics_path, const std::string& key) {
  std::vector<double> values;
  for (const auto& line : metrics_with(metrics_path, key)) values.push_back(line.at(key).get<double>());
  return values;
}

}  // namespace fsdp::testing
