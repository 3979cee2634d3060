// tuning_toml().

#include <algorithm>
#include <map>
#include <sstream>

#include "base/gguf/reader.h"
#include "base/util/error.h"
#include "base/util/text.h"
#include "model/families/families.h"
#include "setup/config/keys.h"
#include "setup/config/model_description.h"
#include "setup/config/presets.h"
#include "setup/config/print.h"
#include "state/description/described_model.h"

namespace fsdp::config {
namespace fs = std::filesystem;

namespace {

constexpr int64_t kTokensOfU16 = 65536;

/// The folder's tokenizer in the form that fsdp-data takes; empty if there is none.
std::string tokenizer_in(const fs::path& folder) {
  if (folder.empty()) return "";
  std::error_code error;
  const auto has = [&](const char* name) { return fs::exists(folder / name, error); };
  if (has("tokenizer.json")) return (folder / "tokenizer.json").string();
  if (has("vocab.json") && has("merges.txt")) return folder.string();
  if (has("encoder.json") && has("vocab.bpe")) return folder.string();
  if (has("tekken.json")) return (folder / "tekken.json").string();
  if (has("tokenizer.model")) return (folder / "tokenizer.model").string();
  return "";
}

/// The model's tokenizer in that form.
std::string tokenizer_of(const checkpoint::DescribedModel& model) {
  if (gguf::is_gguf(model.where)) {
    return gguf::Reader(model.where).metadata().contains("tokenizer.ggml.tokens") ? model.where : "";
  }
  const std::string own = tokenizer_in(model.folder);
  return own.empty() ? tokenizer_in(checkpoint::kept_model_files(model.folder)) : own;
}

/// Parameters of the matrices of a block; norms and biases are a thousandth of these.
struct BlockSizes {
  int64_t feed_forward = 0, whole = 0;
  int64_t expert = 0;  ///< 0: the model has none
};

BlockSizes block_sizes(const nn::ModelOptions& model) {
  const int64_t hidden = model.hidden_size;
  BlockSizes sizes{.feed_forward = nn::feed_forward_elements(model, model.num_hidden_layers - 1)};
  if (nn::family_of(model).has_experts()) sizes.expert = 3 * hidden * nn::expert_width(model);
  const int64_t attention = 2 * hidden * (nn::query_width(model) + nn::key_width(model));
  sizes.whole = sizes.feed_forward + attention;
  return sizes;
}

/// Rounded down to two significant digits.
int64_t rounded(int64_t value) {
  int64_t unit = 1;
  while (value / unit >= 100) unit *= 10;
  return value / unit * unit;
}

/// The value in millions, as text.
std::string millions(int64_t value) { return util::fixed(static_cast<double>(value) / 1e6, 1); }

/// The value of fsdp.min_num_params with which blocks become units, or experts and what else a block has.
std::string least_unit(const BlockSizes& block) {
  if (block.expert == 0) {
    return concat(rounded((block.feed_forward + block.whole) / 2), "  # a block (", millions(block.whole),
                  " million parameters) becomes a unit");
  }
  const int64_t rest = block.whole - block.feed_forward;
  return concat(rounded(std::min(block.expert, rest) / 2), "  # each expert (", millions(block.expert),
                " million parameters) and the rest of a block become units");
}

/// Lines of [model] for `model`.
std::string model_lines(const nn::ModelOptions& model) {
  Config config, defaults;
  config.model = model;
  std::string lines;
  for (const Key& key : all_keys()) {
    if (!is_determined_by_weights(key.full_name())) continue;
    const Value value = value_of(key, config);
    // Sizes are always given, other keys where they differ from the default.
    if (value == value_of(key, defaults) && !std::holds_alternative<int64_t>(value)) continue;
    const bool is_unused = (key.name == "head_dim" && model.head_dim == 0) ||
                           (key.name == "sliding_window" && model.sliding_window == 0) ||
                           (key.name == "sliding_window_pattern" && model.sliding_window_pattern == 0) ||
                           (key.name == "no_rope_layer_interval" && model.no_rope_layer_interval == 0) ||
                           (key.matters.holds && !key.matters.holds(config));
    if (!is_unused) lines += concat(key.name, " = ", toml_text(value), "\n");
  }
  return lines;
}

/// The preset's sections, with `values` (after "=") in place of its own; "model.preset" has whole lines.
std::string sections_with(const std::string& preset, const std::map<std::string, std::string>& values) {
  std::istringstream lines(preset.substr(preset.find("\n[") + 1));
  std::string text, section;
  size_t replaced = 0;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("[")) section = line.substr(1, line.find(']') - 1);
    const auto value = values.find(concat(section, ".", line.substr(0, line.find(" = "))));
    replaced += value != values.end();
    if (value == values.end()) {
      text += line + "\n";
    } else if (value->first == "model.preset") {
      text += value->second;
    } else {
      text += concat(line.substr(0, line.find(" = ")), " = ", value->second, "\n");
    }
  }
  FSDP_CHECK(replaced == values.size(), "a preset lacks a key that depends on the model");
  return text;
}

}  // namespace

std::string tuning_toml(const std::string& preset, const fs::path& path) {
  const auto stored = checkpoint::described_model(path);
  if (!stored) {
    fail(ErrorKind::kCheckpoint, "no config.json beside the weights at ", path.string(),
         " to describe their model; put the config.json of the weights there");
  }
  if (!stored->plugin_config.empty()) {
    fail(ErrorKind::kUsage, "`from` must be a built-in model, but is ", stored->options.architecture,
         ", from a plug-in, at ", path.string(), "; use the config.toml of its run, with model.init_from");
  }
  const nn::ModelOptions& model = stored->options;
  const std::string tokenizer = tokenizer_of(*stored);
  const std::string suffix = model.vocab_size > kTokensOfU16 ? ".u32" : ".bin";
  const bool of_chats = preset == kChats;
  const std::string data = of_chats ? "data/chats" : "data/notes";
  const std::string train = data + ".train" + suffix, validation = data + ".validation" + suffix;
  const BlockSizes block = block_sizes(model);

  const std::string word = tokenizer.empty() ? "TOKENIZER" : util::shell_word(tokenizer);
  const std::string head = concat(
      "Tuning of the model in ", path.string(), of_chats ? " on chats by LoRA" : "",
      "; [model] describes it.\n\n  fsdp-data tokenize ", of_chats ? "chats.jsonl --chat" : "notes/*.txt",
      " --tokenizer ", word, " --output ", train, " \\\n      --validation-output ", validation,
      " --validation-fraction 0.05\n  fsdp-launch --nproc-per-node auto -- fsdp-train configs/", preset,
      ".toml\n",
      of_chats ? "  fsdp-generate checkpoints/chats/best --chat\n"
               : "  fsdp-ckpt export checkpoints/finetune/best finetuned\n");
  const std::string no_tokenizer =
      "\"bytes\"  # replace this by the tokenizer of your token files: there is none beside the weights";
  return as_comment(head) + "\n" +
         sections_with(
             find_preset(preset).text,
             {{"model.preset", model_lines(model)},
              {"model.init_from", quoted_text(path.string()) + "  # the initial weights"},
              {"data.train", concat("[", quoted_text(train), "]")},
              {"data.validation", concat("[", quoted_text(validation), "]")},
              {"data.tokenizer", tokenizer.empty() ? no_tokenizer : quoted_text(tokenizer)},
              {"data.sequence_length", concat(std::min<int64_t>(1024, model.max_position_embeddings))},
              {"fsdp.min_num_params", least_unit(block)}});
}

}  // namespace fsdp::config
