#include "config/model_comparison.h"

#include <set>
#include <string_view>

#include "checkpoint/described_model.h"
#include "config/keys.h"
#include "util/error.h"
#include "util/text.h"

namespace fsdp::config {
namespace {

const std::set<std::string_view> kOfBoth = {"architecture",
                                            "vocab_size",
                                            "hidden_size",
                                            "intermediate_size",
                                            "num_hidden_layers",
                                            "num_attention_heads",
                                            "max_position_embeddings",
                                            "tie_word_embeddings"};
const std::set<std::string_view> kOfGpt2 = {"layer_norm_epsilon"};
const std::set<std::string_view> kOfLlama = {"num_key_value_heads",
                                             "head_dim",
                                             "attention_bias",
                                             "qkv_bias",
                                             "mlp_bias",
                                             "hidden_act",
                                             "rope_theta",
                                             "rope_type",
                                             "sliding_window",
                                             "rope_factor",
                                             "rms_norm_eps",
                                             "rope_low_freq_factor",
                                             "rope_high_freq_factor",
                                             "rope_original_length"};

/// The same model with one spelling of what can be said in several ways.
nn::ModelOptions normalized(nn::ModelOptions options) {
  const nn::ModelOptions defaults;
  if (options.num_attention_heads > 0 &&
      options.head_dim * options.num_attention_heads == options.hidden_size) {
    options.head_dim = 0;
  }
  if (options.rope_type == "default") options.rope_factor = defaults.rope_factor;
  if (options.rope_type != "llama3") {
    options.rope_low_freq_factor = defaults.rope_low_freq_factor;
    options.rope_high_freq_factor = defaults.rope_high_freq_factor;
    options.rope_original_length = defaults.rope_original_length;
  }
  return options;
}

}  // namespace

bool is_determined_by_weights(const std::string& key) {
  return kOfBoth.contains(key) || kOfGpt2.contains(key) || kOfLlama.contains(key);
}

std::vector<ModelDifference> compare_models(const nn::ModelOptions& given, const nn::ModelOptions& stored) {
  Config mine, theirs;
  mine.model = normalized(given);
  theirs.model = normalized(stored);
  const bool same_architecture = given.architecture == stored.architecture;
  const auto& of_architecture = given.architecture == "gpt2" ? kOfGpt2 : kOfLlama;
  std::vector<ModelDifference> differences;
  for (const Key& key : all_keys()) {
    if (key.section != "model") continue;
    if (!kOfBoth.contains(key.name) && !(same_architecture && of_architecture.contains(key.name))) continue;
    const Value my_value = value_of(key, mine), their_value = value_of(key, theirs);
    if (my_value == their_value) continue;
    differences.push_back({key.name, toml_text(my_value), toml_text(their_value)});
  }
  return differences;
}

std::string difference_text(const ModelDifference& difference, const std::string& where) {
  return util::concat("model.", difference.key, ": expected ", difference.stored, ", as ", where,
                      " says of the weights in model.init_from; found ", difference.given);
}

void require_same_model(const nn::ModelOptions& given, const std::filesystem::path& weights) {
  const auto stored = checkpoint::described_model(weights);
  if (!stored) return;
  std::vector<std::string> texts;
  for (const ModelDifference& difference : compare_models(given, stored->options)) {
    texts.push_back(difference_text(difference, stored->where));
  }
  if (texts.empty()) return;
  util::fail(util::ErrorKind::kCheckpoint, util::join(texts, "; "), "; ", kDifferenceRemedy);
}

}  // namespace fsdp::config
