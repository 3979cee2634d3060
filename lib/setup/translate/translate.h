#pragma once

// Translates configs of other trainers: axolotl's and LLaMA-Factory's YAML, torchtitan's TOML, and Hugging
// Face's TrainingArguments in JSON or YAML. The table of foreign names (foreign_names.h) carries the
// translation: a row without a remark takes the value as it is. Rules in rules.cpp convert the values of
// other names.

#include <filesystem>
#include <string>
#include <vector>

namespace fsdp::config {

struct Translation {
  std::string form;  ///< "a config of axolotl (YAML)"
  /// The config, which begins with comments: what to do before the run, and all that was left out, with the
  /// reasons.
  std::string toml;
  size_t names = 0;                   ///< names in the file that have a value
  std::vector<std::string> left_out;  ///< those of them that have an effect there and none here
};

/// Reads the file, whose form follows from its names. Throws Error(kUsage) if it is of none of the forms, or
/// for a kind of training that this program lacks, such as DPO. Does not require the model and the data that
/// the file names.
Translation translated(const std::filesystem::path& file);

}  // namespace fsdp::config
