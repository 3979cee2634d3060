// finetune_preset().

#include <algorithm>

#include "checkpoint/described_model.h"
#include "config/keys.h"
#include "config/model_description.h"
#include "config/presets.h"
#include "util/error.h"
#include "util/text.h"

namespace fsdp::config {
namespace fs = std::filesystem;
using util::concat;

namespace {

constexpr int64_t kTokensOfU16 = 65536;

/// The folder's tokenizer in the form that fsdp-data takes; empty if there is none.
std::string tokenizer_in(const fs::path& folder) {
  std::error_code error;
  const auto has = [&](const char* name) { return fs::exists(folder / name, error); };
  if (has("tokenizer.json")) return (folder / "tokenizer.json").string();
  if (has("vocab.json") && has("merges.txt")) return folder.string();
  if (has("encoder.json") && has("vocab.bpe")) return folder.string();
  if (has("tokenizer.model")) return (folder / "tokenizer.model").string();
  return "";
}

/// Parameters of the matrices of a block; norms and biases are a thousandth of these.
struct BlockSizes {
  int64_t feed_forward = 0, whole = 0;
};

BlockSizes block_sizes(const nn::ModelOptions& model) {
  const int64_t hidden = model.hidden_size, inner = model.intermediate_size;
  const bool gpt2 = model.architecture == "gpt2";
  BlockSizes sizes{.feed_forward = (gpt2 ? 2 : 3) * hidden * inner};
  const int64_t attention =
      gpt2 ? 4 * hidden * hidden : 2 * hidden * (nn::query_width(model) + nn::key_width(model));
  sizes.whole = sizes.feed_forward + attention;
  return sizes;
}

/// Rounded down to two significant digits.
int64_t rounded(int64_t value) {
  int64_t unit = 1;
  while (value / unit >= 100) unit *= 10;
  return value / unit * unit;
}

/// In millions, for a note.
std::string millions(int64_t value) { return util::fixed(static_cast<double>(value) / 1e6, 1); }

std::vector<PresetValue> model_values(const nn::ModelOptions& model) {
  Config config, defaults;
  config.model = model;
  std::vector<PresetValue> values;
  for (const Key& key : all_keys()) {
    if (!is_determined_by_weights(key.full_name())) continue;
    const Value value = value_of(key, config);
    // Sizes are always given, other keys where they differ from the default.
    if (value == value_of(key, defaults) && !std::holds_alternative<int64_t>(value)) continue;
    if (model.architecture == "gpt2" && key.name == "num_key_value_heads") continue;
    const bool is_unused = (key.name == "head_dim" && model.head_dim == 0) ||
                           (key.name == "sliding_window" && model.sliding_window == 0) ||
                           (key.name == "rope_original_length" && model.rope_type != nn::RopeType::kLlama3);
    if (!is_unused) values.push_back({key.full_name(), toml_text(value), ""});
  }
  return values;
}

}  // namespace

Preset finetune_preset(const fs::path& folder) {
  const auto stored = checkpoint::described_model(folder);
  if (!stored) {
    util::fail(util::ErrorKind::kCheckpoint, "expected weights whose model is written beside them at ",
               folder.string(), "; found no config.json there; put the config.json of the weights there");
  }
  if (!stored->plugin_config.empty()) {
    util::fail(util::ErrorKind::kUsage, "`from`: expected a model that is built in; found one of a plug-in, ",
               stored->options.architecture, ", at ", folder.string(),
               "; go on with the config.toml of its run, and model.init_from");
  }
  const nn::ModelOptions& model = stored->options;
  const std::string tokenizer = tokenizer_in(stored->folder);
  const std::string suffix = model.vocab_size > kTokensOfU16 ? ".u32" : ".bin";
  const std::string train = "data/notes.train" + suffix, validation = "data/notes.validation" + suffix;
  const BlockSizes block = block_sizes(model);

  Preset preset = find_preset("finetune");
  preset.text =
      concat("Fine-tuning of the model in ", folder.string(), ", which [model] below describes.\n\n",
             "  fsdp-data tokenize notes/*.txt --tokenizer ",
             tokenizer.empty() ? "TOKENIZER" : util::shell_word(tokenizer), " --output ", train,
             " \\\n      --validation-output ", validation,
             " --validation-fraction 0.05\n"
             "  fsdp-launch --nproc-per-node auto -- fsdp-train CONFIG\n"
             "  fsdp-ckpt export checkpoints/finetune/best finetuned");
  std::erase_if(preset.values, [](const PresetValue& value) { return value.key.starts_with("model."); });
  std::vector<PresetValue> own = model_values(model);
  own.push_back({"model.init_from", quoted_text(folder.string()), "the weights to begin with"});
  own.push_back({"data.train", concat("[", quoted_text(train), "]"), ""});
  own.push_back({"data.validation", concat("[", quoted_text(validation), "]"), ""});
  if (!tokenizer.empty()) {
    own.push_back({"data.tokenizer", quoted_text(tokenizer), ""});
  } else {
    own.push_back({"data.tokenizer", "\"bytes\"",
                   "no vocabulary lies beside the weights: name the one that the texts were tokenized with"});
  }
  own.push_back({"data.sequence_length", concat(std::min<int64_t>(1024, nn::longest_sequence(model))), ""});
  own.push_back({"fsdp.min_num_params", concat(rounded((block.feed_forward + block.whole) / 2)),
                 concat("a block has ", millions(block.whole), " million parameters and becomes a unit")});
  preset.values.insert(preset.values.end(), own.begin(), own.end());
  return preset;
}

}  // namespace fsdp::config
