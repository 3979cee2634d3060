// What is trained, and on what: [run], [model] and [data].

#include "config/key_tables.h"
#include "config/model_presets.h"
#include "data/datasets.h"
#include "nn/architectures.h"

namespace fsdp::config {
namespace {

// Upper bounds keep products such as batch * sequence * vocabulary inside 64 bits; no real model comes near.
constexpr double kMaxWidth = 1'000'000;
constexpr double kMaxHeads = 1024;
constexpr double kMaxPositions = 10'000'000;

Constraint a_preset() {
  std::vector<std::string> names = {""};
  for (const ModelPreset& preset : model_presets()) names.push_back(preset.name);
  return one_of(std::move(names));
}

}  // namespace

std::vector<Key> model_keys() {
  return {
      {KEY(run, name), "name of the run in logs", non_empty(), {}},
      {KEY(run, output_dir), "folder of checkpoints, metrics and the resolved config", non_empty(), {}},
      {KEY(run, seed), "of initial weights and sample order", at_least(0), {}},
      {KEY(run, plugins),
       "shared libraries that add models, losses, optimizers, schedules, data sets and sections of keys; each "
       "runs as part of this program",
       {},
       {}},

      {KEY(model, preset), "a well-known model, for the keys of [model] that are not given", a_preset(), {}},
      {KEY(model, architecture), "family of the model", one_of_registered(nn::architectures()), {}},
      {KEY(model, vocab_size), "tokens of the vocabulary", between(1, 10'000'000), {}},
      {KEY(model, hidden_size), "width of the hidden states", between(1, kMaxWidth), {}},
      {KEY(model, intermediate_size), "width inside the feed-forward", between(1, kMaxWidth), {}},
      {KEY(model, num_hidden_layers), "blocks", between(1, 10'000), {}},
      {KEY(model, num_attention_heads), "query heads of a block", between(1, kMaxHeads), {}},
      {KEY(model, num_key_value_heads), "llama: fewer than query heads is grouped-query attention",
       between(1, kMaxHeads), "num_attention_heads"},
      {KEY(model, head_dim),
       "llama: width of a head; 0: hidden_size / num_attention_heads",
       between(0, kMaxWidth),
       {}},
      {KEY(model, attention_bias), "llama: query, key, value and output projections have biases", {}, {}},
      {KEY(model, qkv_bias), "llama: query, key and value projections have biases (Qwen2)", {}, {}},
      {KEY(model, mlp_bias), "llama: the feed-forward has biases", {}, {}},
      {KEY(model, hidden_act), "llama: activation of the feed-forward's gate", {}, {}},
      {KEY(model, sliding_window),
       "llama: tokens that Mistral's attention reaches back; sequences may not be longer; 0: any",
       between(0, kMaxPositions),
       {}},
      {KEY(model, max_position_embeddings),
       "longest sequence of the model, in tokens",
       between(1, kMaxPositions),
       {}},
      {KEY(model, rope_theta), "llama: base of the rotary embedding", above(0), {}},
      {KEY(model, rope_type), "llama: how positions beyond the first training's length are reached", {}, {}},
      {KEY(model, rope_factor), "linear, llama3: the longer length over the first", above(0), {}},
      {KEY(model, rope_low_freq_factor),
       "llama3: turns in the first length below which all is slowed",
       above(0),
       {}},
      {KEY(model, rope_high_freq_factor), "llama3: turns above which nothing is", above(0), {}},
      {KEY(model, rope_original_length),
       "llama3: the first length, in tokens",
       between(1, kMaxPositions),
       {}},
      {KEY(model, rms_norm_eps), "llama: epsilon of RMSNorm", above(0), {}},
      {KEY(model, layer_norm_epsilon), "gpt2: epsilon of LayerNorm", above(0), {}},
      {KEY(model, initializer_range), "standard deviation of the initial weights", at_least(0), {}},
      {KEY(model, embedding_dropout), "dropout of the embeddings while training", from_up_to_below(0, 1), {}},
      {KEY(model, attention_dropout),
       "dropout of the attention's weights while training; they exist as a whole then",
       from_up_to_below(0, 1),
       {}},
      {KEY(model, hidden_dropout),
       "dropout of what attention and feed-forward add to their input while training",
       from_up_to_below(0, 1),
       {}},
      {KEY(model, tie_word_embeddings), "the head uses the embedding's weight", {}, {}},
      {KEY(model, init_from),
       "first weights: a Hugging Face folder, a .safetensors file or a checkpoint; what it says of the model "
       "is the default of [model], and nothing else is taken; empty: random",
       {},
       {}},
      {KEY(model, init_unused),
       "patterns (* and ?) of tensors of init_from that the model may have no place for",
       {},
       {}},
      {KEY(model, init_broadcast),
       "process 0 alone reads (or makes) the first weights and sends them on: for slow shared file systems",
       {},
       {}},

      {KEY(data, dataset),
       "what opens train and validation; a plug-in can add others",
       one_of_registered(data::datasets()),
       {}},
      {KEY(data, train), "token files, or patterns of them with *, read as if joined", non_empty(), {}},
      {KEY(data, train_weights),
       "one number above 0 for each entry of train, which are sets of their "
       "own then: shares of their samples",
       above(0),
       {}},
      {KEY(data, validation), "token files, or patterns of them; none: no validation", {}, {}},
      {KEY(data, tokenizer),
       "what the tokens are, for whoever turns them into text again: bytes, or "
       "the path that fsdp-data was given",
       non_empty(),
       {}},
      {KEY(data, sequence_length), "tokens of a sample", between(1, 1'000'000), {}},
      {KEY(data, micro_batch_size), "samples of a rank in a micro-batch", between(1, 100'000), {}},
      {KEY(data, documents),
       "mask: attention stays inside documents; split: a sample is of one document, and the rest of its row "
       "does not count; join: as if all were one",
       {},
       {}},
      {KEY(data, document_separator),
       "token that ends a document, in files without an index of them; -1: the tokenizer's end of text",
       between(-1, 4294967295.0),
       {}},
      {KEY(data, allow_changed),
       "resume, with a warning, although the token files are not those that the checkpoint was trained with",
       {},
       {}},
      {KEY(data, prefetch_batches),
       "batches that a thread makes ahead of the step; 0: none",
       between(0, 1000),
       {}},
      {KEY(data, shuffle), "visit the samples in an order that depends on run.seed", {}, {}},
  };
}

}  // namespace fsdp::config
