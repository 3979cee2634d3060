#pragma once

// Names that people bring from other trainers: torchtitan, Hugging Face's Trainer, PEFT, axolotl,
// LLaMA-Factory, fairseq, FairScale, Megatron, nanoGPT and llm.c. One table gives this program's key for
// each, or a sentence if there is none. Messages about unknown names ask the table before they look for a
// similar spelling.

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp::config {

/// A row of the table.
struct ForeignName {
  /// The key with this meaning, alone or with a value: "fsdp.cpu_offload", "training.device = \"cpu\"". Empty
  /// if there is none; `remark` is then the answer.
  std::string_view ours;
  /// Names of other trainers, separated by spaces. A name with a section, "model.name", is meant only in that
  /// section, "[metrics]" is the section itself, and * stands for any characters.
  std::string_view names;
  /// Added to the answer. Without it, the key takes the other program's value as it is.
  std::string_view remark = {};
};

std::span<const ForeignName> foreign_names();

/// The row of the name with its section, or else of the name alone. Null if the table lacks it. Case, hyphens
/// and underscores do not matter.
const ForeignName* foreign_name(std::string_view section, std::string_view name);

/// A value of other trainers, for `key` or, if it is empty, for all keys with the choice `ours`.
struct ForeignValue {
  std::string_view key;
  std::string_view ours;
  std::string_view names;  ///< as in ForeignName
};

std::span<const ForeignValue> foreign_values();

/// Returns the answer to a name that is no key, such as "write data.sequence_length instead"; empty if the
/// table lacks the name. A section may be missing or wrong.
std::string foreign_name_answer(std::string_view section, std::string_view name);

/// The same for a flag with its value, which may be empty: "write data.sequence_length=2048".
std::string foreign_flag_answer(std::string_view name, const std::string& value);

/// Returns the one of `choices` of a key that other trainers call `value`; empty if there is none.
std::string foreign_value_choice(std::string_view key, std::string_view value,
                                 const std::vector<std::string>& choices);

}  // namespace fsdp::config
